"""What knows both a recipe and a folder.

experiment   recipe → objects                          train      a recipe into a run folder
recorder     what a run notes of itself                evaluate   a model under attack
targets      what an evaluation is aimed at            compare    evaluated runs side by side
doctor       this machine, this recipe
"""
