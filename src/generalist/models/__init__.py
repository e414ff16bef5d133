"""Models: name → network with its normalisation inside; to and from disk; folded for attacks.

building        build_model, build_from_spec
spec            ModelSpec, Classifier
loading         save_model, load_model, load_weights, read_extra
checkpoints     somebody else's weights: prefixes, nestings, normalisation
folding         fold_batchnorm, refresh_, folded, forget_transforms
patches         Patchable, Patches: passes through images of which only a window has changed
winograd        WinogradConv2d, float32_on_cpu
layout          prefers_channels_last: whether somebody else's network works so
normalize       Normalize
shared_batchnorm SharedBatchNorm, share_batchnorm_, has_unshared_batchnorm
registry        MODELS: small_cnn, resnet18/34/50, wide_resnet50_2, preact_resnet18
wide_resnet     the pattern wrn-D-K
foreign         the patterns timm/<name> and module:callable
"""

# The architectures are imported for their entries in MODELS.
from generalist.models import preact_resnet, resnet, small_cnn, wide_resnet  # noqa: F401
from generalist.models.building import build_from_spec, build_model
from generalist.models.checkpoints import normalises_itself
from generalist.models.folding import fold_batchnorm, folded, forget_transforms, refresh_
from generalist.models.foreign import is_foreign
from generalist.models.layout import alike, prefers_channels_last
from generalist.models.loading import check_saved, load_model, load_weights, read_extra, save_model
from generalist.models.normalize import Normalize
from generalist.models.patches import Patchable, Patches
from generalist.models.registry import MODELS
from generalist.models.shared_batchnorm import SharedBatchNorm, has_unshared_batchnorm, share_batchnorm_
from generalist.models.spec import Classifier, ModelSpec
from generalist.models.winograd import float32_on_cpu

__all__ = [
    "MODELS",
    "Classifier",
    "ModelSpec",
    "Normalize",
    "Patchable",
    "Patches",
    "SharedBatchNorm",
    "alike",
    "build_from_spec",
    "build_model",
    "check_saved",
    "float32_on_cpu",
    "fold_batchnorm",
    "folded",
    "forget_transforms",
    "has_unshared_batchnorm",
    "is_foreign",
    "load_model",
    "load_weights",
    "normalises_itself",
    "prefers_channels_last",
    "read_extra",
    "refresh_",
    "save_model",
    "share_batchnorm_",
]
