"""The command line: one file per command, which reads arguments, calls the library and prints.

main       every command together, errors and exit codes        options    what several commands take
train · eval · compare · dial · recipes · doctor                messages   what goes to standard error
importing  interrupts while torch is imported, which happens only inside a command that needs it
"""
