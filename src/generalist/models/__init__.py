"""Models: name → network with its normalisation inside; to and from disk.

building        build_model, build_from_spec
spec            ModelSpec, Classifier
loading         save_model, load_model, load_weights, read_extra
checkpoints     somebody else's weights: prefixes, nestings, normalisation
frozen          frozen: eval mode without weight gradients, restored afterwards
gradcam         gradcam: which pixels speak for a class
layout          prefers_channels_last: whether somebody else's network works so
normalize       Normalize
registry        MODELS: small_cnn, resnet18/34/50, wide_resnet50_2, preact_resnet18
wide_resnet     the pattern wrn-D-K
foreign         the patterns module:callable, timm/<name> and torchvision/<name>
pretrained      networks of timm and torchvision, and the weights published with them
renaming        somebody's tensors under other names: pairs by order and shape
given           networks that somebody holds as objects, remembered by name in this process
"""

# The architectures are imported for their entries in MODELS.
from generalist.models import preact_resnet, resnet, small_cnn, wide_resnet  # noqa: F401
from generalist.models.building import build_from_spec, build_model
from generalist.models.checkpoints import normalises_itself
from generalist.models.foreign import is_foreign
from generalist.models.given import architecture, called, is_given, reference, remember, remember_as
from generalist.models.layout import alike, prefers_channels_last
from generalist.models.loading import check_saved, load_model, load_weights, read_extra, read_spec, save_model
from generalist.models.normalize import Normalize
from generalist.models.pretrained import PRETRAINED, published_weights
from generalist.models.registry import MODELS
from generalist.models.renaming import Rename
from generalist.models.spec import Classifier, ModelSpec

__all__ = [
    "MODELS",
    "PRETRAINED",
    "Classifier",
    "ModelSpec",
    "Normalize",
    "Rename",
    "alike",
    "architecture",
    "build_from_spec",
    "build_model",
    "called",
    "check_saved",
    "is_foreign",
    "is_given",
    "load_model",
    "load_weights",
    "normalises_itself",
    "prefers_channels_last",
    "published_weights",
    "read_extra",
    "read_spec",
    "reference",
    "remember",
    "remember_as",
    "save_model",
]
