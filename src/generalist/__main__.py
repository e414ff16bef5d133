from generalist.cli import main

main()
