"""`python -m generalist`, but one rank is killed in the middle of something, once: $DIES is "rank what occasion"."""

import os
import signal

import torch.distributed as dist

from generalist.cli.main import main
from generalist.distributed import ranks
from generalist.runs.experiment import Experiment
from generalist.training.learner import Learner


class Fate:
    """Counts occasions, and kills this process on the one that was chosen."""

    def __init__(self, occasion):
        self.left = occasion

    def meets(self):
        self.left -= 1
        if self.left == 0:
            os.write(2, b"killed here\n")
            os.kill(os.getpid(), signal.SIGKILL)


def before(fate, function, applies=lambda *args, **kwargs: True):
    def replaced(*args, **kwargs):
        if applies(*args, **kwargs):
            fate.meets()
        return function(*args, **kwargs)

    return replaced


def arrange(what, occasion):
    fate = Fate(occasion)
    if what == "step":  # attacked, but no gradient yet
        Learner._evaluate = before(fate, Learner._evaluate)
    elif what == "checkpoint":  # rank 0: written, but not in place; the others: while they send theirs
        os.replace = before(fate, os.replace, lambda source, path: "checkpoints" in str(path))
        hand_over = ranks.hand_over
        send = dist.send

        def handed_over(*args, purpose, **kwargs):
            dist.send = before(fate, send) if purpose == "checkpoint" else send
            return hand_over(*args, purpose=purpose, **kwargs)

        ranks.hand_over = handed_over
    elif what == "redistribution":  # when the others may have begun the sum already
        redistribute, all_reduce = Experiment.redistribute_, dist.all_reduce

        def redistributed(experiment):
            dist.all_reduce = before(fate, all_reduce)
            redistribute(experiment)
            dist.all_reduce = all_reduce

        Experiment.redistribute_ = redistributed
    else:
        raise ValueError(what)


if __name__ == "__main__":
    rank, what, occasion = os.environ["DIES"].split()
    if os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        arrange(what, int(occasion))
    main()
