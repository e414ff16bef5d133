"""Several processes on one job.

launch             what torchrun said of this process; no torch needed
ranks              this process among those that torchrun started; all-reduce, broadcast, teams
rendezvous         how the processes of one start find each other, also after a restart
shared_batchnorm   BatchNorm over the whole batch where several processes have a part of it each

torch.distributed is used here, and DistributedDataParallel in `training.learner`.
"""
