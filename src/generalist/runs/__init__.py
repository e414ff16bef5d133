"""What knows both a recipe and a folder.

paths        the file names of a run                   folder     what a run holds, checked
claims       who may write to a folder                 workers    processes that share independent work
experiment   recipe → objects                          train      a recipe into a run folder
recorder     what a run notes of itself                evaluate   a model under attack
targets      what an evaluation is aimed at            compare    evaluated runs side by side
doctor       this machine, this recipe                 dial       mixtures of finished models, chosen afterwards
export       a model for other programs                hub        a folder to a model hub
robustbench  an evaluation as an entry                 trackers   other people's tools that follow a run

The parts of the dial: dial_endpoints (what is mixed), dial_points (made, measured and kept), dial_search (weights per
module), dial_export (a point as a run of its own).
"""
