"""Many runs as one study: planned, priced, shared by processes and machines, and summed up.

`plan` makes trials of a study, `cost` says what they take here, `ledger` shares them out through an Optuna storage,
`trial` trains and attacks one, `worker` does one after the other, `study` is all of it. `tune` searches instead.
"""
