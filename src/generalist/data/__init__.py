"""Datasets and their batches."""

from generalist.data.augment import Augment, augment
from generalist.data.batches import batches, sequential_batches, steps_per_epoch
from generalist.data.datasets import DATASETS, OWN_ROOT, EvaluationImages, load_dataset, load_evaluation_images
from generalist.data.download import fetch
from generalist.data.extra import Label, Mixture, read_extra_split
from generalist.data.folder import UNREADABLE
from generalist.data.locate import MissingData
from generalist.data.sources import SOURCES, Source, obtain
from generalist.data.splits import ArraySplit, Dataset, DataWarning, FileSplit, Parts, Split
from generalist.data.survey import Survey, survey_images

__all__ = [
    "DATASETS",
    "OWN_ROOT",
    "SOURCES",
    "UNREADABLE",
    "ArraySplit",
    "Augment",
    "DataWarning",
    "Dataset",
    "EvaluationImages",
    "FileSplit",
    "Label",
    "MissingData",
    "Mixture",
    "Parts",
    "Source",
    "Split",
    "Survey",
    "augment",
    "batches",
    "fetch",
    "load_dataset",
    "load_evaluation_images",
    "obtain",
    "read_extra_split",
    "sequential_batches",
    "steps_per_epoch",
    "survey_images",
]
