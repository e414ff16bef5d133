"""Several processes on one job. The only code that knows torch.distributed.

launch             what torchrun said of this process; no torch needed
ranks              this process among those that torchrun started; what they say to each other
rendezvous         how the processes of one start find each other, also after a restart
shared_batchnorm   BatchNorm over the whole batch where several processes have a part of it each
"""
