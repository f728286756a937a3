"""`Model`: a frozen CLIP, a method and a class list in one object. All other packages work with this class only.

`Model` provides what is the same for all methods: class lists, cached class features, the switch back to plain CLIP,
prediction and saving. A model never changes its classes: `for_classes` returns a light view with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from dear.backbone.clip import FrozenClip, short_name
from dear.backbone.frozen import PLAIN, States
from dear.backbone.precision import computing, precision_key
from dear.config import whole_number
from dear.data.prompts import DEFAULT_TEMPLATE, ClassList, class_list
from dear.errors import BackboneError, ClassListError, ConfigError, InputError, did_you_mean, option
from dear.methods.base import Batch, Method, Output, total_of
from dear.methods.zero_shot import ZeroShot
from dear.model.artefact import save
from dear.model.calibration import Calibration
from dear.model.class_cache import IdentitySnapshot, ValueSnapshot, concatenated
from dear.model.class_chunk import class_chunk, free_memory
from dear.model.export import Baked
from dear.model.predict import Prediction, predict

ALL = 0
"""The chunk that was found if all classes fit into memory."""
_SWITCHED_OFF: ContextVar[tuple[Method, ...]] = ContextVar("dear_switched_off", default=())


@final
class Model(nn.Module):
    """A frozen CLIP adapted by a method, for a list of classes."""

    def __init__(
        self,
        clip: FrozenClip,
        method: Method,
        classes: ClassList | None = None,
        *,
        trained_on: Sequence[str] = (),
        chunk: int | None = None,
        companions: Mapping[str, Model] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """Combine the three.

        Args:
            clip: from `dear.load_clip`.
            method: a method created for that CLIP.
            classes: the classes to distinguish; see `for_classes`.
            trained_on: names of the classes that the method is, or will be, trained on.
            chunk: number of classes whose features are computed at once; by default all that fit into memory.
            companions: the models named in the method's needs; by default those it was created with.
            calibration: fitted by `dear.calibrate` for these classes.
        """
        super().__init__()
        if not isinstance(clip, FrozenClip):
            raise BackboneError(f"A method adapts a backbone from dear.load_clip(…), but got a {type(clip).__name__}.")
        if not isinstance(method, Method):
            raise ConfigError(f"The method is of type {type(method).__name__}: give a dear.Method made for the CLIP.")
        if classes is not None and not isinstance(classes, ClassList):
            raise ClassListError("Classes cannot be set here: use model.for_classes([…]).")
        if chunk is not None:
            whole_number("chunk", chunk, least=1)
        self.clip, self.method = clip, method.to(clip.device)
        self.trained_on = tuple(trained_on)
        self.chunk = chunk
        self._found_chunk: int | None = None
        self.companions: dict[str, Model] = dict(companions or method.companions)
        self.calibration = calibration
        self.classes = classes.among(self.trained_on) if classes else None
        self._parts: tuple[IdentitySnapshot, dict[object, list[tuple[slice, Any]]]] | None = None
        self._text: tuple[ValueSnapshot, object, object, Any] | None = None
        self._off: list[Model] = []

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.method.name

    @property
    def config(self) -> Any:
        """The method's config."""
        return self.method.config

    # Classes -------------------------------------------------------------------------------------------------------

    def for_classes(
        self,
        classes: Sequence[str] | ClassList,
        template: str | None = None,
        *,
        descriptions: Mapping[str, Sequence[str]] | None = None,
        chunk: int | None = None,
    ) -> Model:
        """The same model for other classes: a view that shares all weights but has its own cached class features.

        Known classes keep their descriptions unless `descriptions` replaces them. A calibration holds for the classes
        that it was fitted for, so a view for others has none.
        """
        known = {**((self.classes.descriptions if self.classes else None) or {}), **(descriptions or {})}
        if not isinstance(classes, ClassList):
            usual = self.classes.template if self.classes else DEFAULT_TEMPLATE
            # Another template may not fit the data set's own prompts.
            dataset = self.classes.dataset if self.classes and not template else None
            classes = class_list(classes, template or usual, dataset=dataset, descriptions=known)
        elif classes.descriptions is None and known:
            classes = classes.with_descriptions(known)
        return Model(
            self.clip,
            self.method,
            classes,
            trained_on=self.trained_on,
            chunk=self.chunk if chunk is None else chunk,
            companions=self.companions,
            calibration=self.calibration if self.classes and self.classes.names == classes.names else None,
        )

    def plain(self) -> Model:
        """Plain CLIP for the same classes."""
        if not self._off:
            self._off.append(Model(self.clip, ZeroShot(self.clip, ZeroShot.Config()), self.classes, chunk=self.chunk))
        return self._off[0]

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within this context, in this thread, the model and its views compute exactly what plain CLIP computes."""
        token = _SWITCHED_OFF.set((*_SWITCHED_OFF.get(), self.method))
        try:
            yield
        finally:
            _SWITCHED_OFF.reset(token)

    @property
    def is_disabled(self) -> bool:
        """Whether this thread is within the context `disabled`."""
        return any(method is self.method for method in _SWITCHED_OFF.get())

    def required_classes(self) -> ClassList:
        """The class list; raises `ClassListError` if none is set."""
        if self.classes is None:
            raise ClassListError('No classes are set: use model.for_classes(["cat", "dog"]).')
        return self.classes

    def class_chunk(self) -> int | None:
        """Number of classes whose features are computed at once; None for all.

        Without `chunk`, it is found from the free memory when the classes are first needed.
        """
        if not self.method.needs.independent or self.classes is None:
            return None
        if self.chunk is None and self._found_chunk is None:
            self._found_chunk = class_chunk(self.clip, self.classes, free_memory(self.clip.device), self.method) or ALL
        return self.chunk or self._found_chunk or None

    def frozen_parts(self) -> list[tuple[slice, Any]]:
        """The result of `method.classes` for each part of the list, one per autocast type while CLIP's weights stay."""
        with computing(self.clip.device):
            weights, key = list(self.clip.parameters()), precision_key()
            if self._parts is None or not self._parts[0].matches(weights):
                self._parts = (IdentitySnapshot(weights), {})
            by_type = self._parts[1]
            if key not in by_type:
                by_type[key] = self._made_parts()
            return by_type[key]

    def _made_parts(self) -> list[tuple[slice, Any]]:
        classes = self.required_classes()
        count = len(classes.names)
        size = self.class_chunk() or count
        cuts = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        lists = [classes] if len(cuts) == 1 else [classes.part(at) for at in cuts]
        with torch.inference_mode(False), torch.no_grad():
            return [(at, self.method.classes(self.clip, one)) for at, one in zip(cuts, lists, strict=True)]

    def text(self, batch: Batch | None = None) -> Any:
        """The result of `method.text` for all classes; without gradients it is cached until a tensor changes."""
        with computing(self.clip.device):
            if batch is not None or (torch.is_grad_enabled() and self.method.trained):
                return self.step_text(batch)
            parts, key, cached = self.frozen_parts(), precision_key(), self._text
            now = [*self.method.parameters(), *self.method.buffers()]
            if cached is None or cached[1] != key or cached[2] is not parts or not cached[0].matches(now):
                with torch.inference_mode(False), torch.no_grad():
                    cached = self._text = (ValueSnapshot(now), key, parts, self.step_text(None))
            return cached[3]

    def step_text(self, batch: Batch | None, parts: Sequence[tuple[slice, Any]] | None = None) -> Any:
        """The result of `method.text` for all classes in one training step; never cached.

        `parts` is the result of `frozen_parts`, for callers that have it.
        """
        parts = self.frozen_parts() if parts is None else parts
        made = [self.part_text(at, frozen, batch) for at, frozen in parts]
        return concatenated(made, [at.stop - at.start for at, _ in parts])

    def part_text(self, at: slice, frozen: Any, batch: Batch | None) -> Any:
        """The result of `method.text` for one of the `frozen_parts`."""
        return self.method.text(self.clip, frozen, self.text_batch(batch, at))

    def text_batch(self, batch: Batch | None, at: slice) -> Batch | None:
        """The batch for a part of the classes: its rows are classes, so that random numbers are made per class."""
        if batch is None:
            return None
        return replace(batch, labels=None, rows=at, size=len(self.required_classes().names))

    def class_features(self) -> Tensor:
        """(C, E) class features of unit length, for methods that have one feature per class."""
        if self.is_disabled:
            return self.plain().class_features()
        text = self.text()
        features = torch.as_tensor(text if isinstance(text, Tensor) else tree_flatten(text)[0][0])
        if features.ndim != 2:
            raise ConfigError(f"The class features of {self.name} depend on the image: classify images instead.")
        return features

    def states(
        self,
        images: Tensor,
        *,
        training: bool = False,
        plain_images: Tensor | None = None,
        names: Sequence[str] | None = None,
    ) -> States:
        """The frozen tensors of images that the method reads, by name; or the tensors `names`.

        For a method that reads only "feature", OpenCLIP's own code computes it. `plain_images` are the images without
        augmentation, for names that begin with "plain:".
        """
        names = self.names(training=training) if names is None else names
        own = [name for name in names if ":" not in name or name.startswith("terms:")]
        with torch.no_grad(), computing(self.clip.device):
            states = {"feature": self.clip.stock_feature(images)} if own == ["feature"] else {}
            states = states or (self.clip.frozen(images, own) if own else {})
            for name in (name for name in names if name not in states):
                states[name] = self._further(name, images, plain_images)
        return states

    def names(self, *, training: bool = False) -> tuple[str, ...]:
        """Names of the frozen tensors that the method reads."""
        needs = self.method.needs
        return tuple(dict.fromkeys((*needs.image, *(needs.training if training else ()))))

    def _further(self, name: str, images: Tensor, plain_images: Tensor | None) -> Tensor:
        if name.startswith(PLAIN):
            shown = images if plain_images is None else plain_images
            return self.clip.frozen(shown, [name.removeprefix(PLAIN)])[name.removeprefix(PLAIN)]
        return self.companion(name).image_features(images)

    def companion(self, name: str) -> Model:
        """The companion model of a name such as "teacher:image"."""
        companion, _, _ = name.partition(":")
        if companion not in self.companions:
            raise ConfigError(f"{self.name} needs a companion model {companion!r}: pass it in companions=….")
        return self.companions[companion]

    @torch.no_grad()
    def image_features(self, images: Tensor) -> Tensor:
        """(B, E) features of images, of unit length: the first kind of feature in the method's output."""
        out: Output = self(images)
        return next(iter(out.features.values()))

    def forward(
        self,
        images: Tensor | None = None,
        *,
        given: Mapping[str, Tensor] | None = None,
        batch: Batch | None = None,
    ) -> Output:
        """Classify preprocessed images (B, 3, H, W), or the result of `states`; `batch` is for training only."""
        if self.is_disabled:
            switched_off: Output = self.plain()(images, given=given)
            return switched_off
        with computing(self.clip.device):
            if given is None:
                if images is None:
                    raise InputError("There is nothing to classify: pass images, or given=model.states(images).")
                image = self.states(images, training=batch is not None)
            else:
                image = self._completed(given, training=batch is not None)
            out: Output = self.method(self.clip, image, self.text(batch), batch)
            return out

    def _completed(self, given: Mapping[str, Tensor], *, training: bool) -> States:
        if not isinstance(given, Mapping):
            raise InputError(f"given is of type {type(given).__name__}: pass the result of model.states(images).")
        names = self.names(training=training)
        known = {name: value for name, value in given.items() if value.shape[0]}
        missing = [name for name in names if name not in known]
        return {**known, **(self.clip.complete(known, missing) if missing else {})}

    def loss(self, images: Tensor, labels: Tensor, *, seed: int = 0, step: int = 0) -> dict[str, Tensor]:
        """The loss of a batch ("total", for `backward`) and its terms, by name."""
        self.check_labels(images.shape[0] if isinstance(images, Tensor) else 0, labels)
        batch = Batch(labels, seed, step, None, labels.shape[0])
        with computing(self.clip.device):
            terms = self.method.loss(self(images, batch=batch), batch)
            return {"total": total_of(terms), **terms}

    def check_labels(self, images: int, labels: Tensor) -> None:
        """Raise `InputError` for labels that do not fit the images or the classes."""
        classes = len(self.required_classes().names)
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or tuple(labels.shape) != (images,):
            form = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
            raise InputError(f"Labels must be an int64 tensor of shape ({images},), but are {form}.")
        if images and (int(labels.min()) < 0 or int(labels.max()) >= classes):
            raise InputError(
                f"Labels go from {int(labels.min())} to {int(labels.max())}, but the {classes} classes are numbered "
                f"from 0."
            )

    def readout(self, purpose: str = "default") -> str:
        """Name of the method's readout for a purpose: "default", "novel" or "transfer"."""
        return self.method.readouts.get(purpose, self.method.readouts["default"])

    def check_readout(self, name: str | None) -> str:
        """The name of a readout, by default the method's first; an unknown name raises `ConfigError`."""
        known = list(dict.fromkeys(self.method.readouts.values()))
        if name is None:
            return known[0]
        if name not in known:
            raise ConfigError(
                f"{self.name} has no readout {name!r}: choose {' or '.join(known)}.{did_you_mean(str(name), known)}"
            )
        return name

    def calibrated(self, readout: str | None = None) -> Calibration | None:
        """The calibration; None for plain CLIP and for another readout than the one it was fitted for."""
        return self.calibration if not self.is_disabled and readout in (None, self.readout()) else None

    def check_multi_label(self, readout: str | None = None) -> None:
        """Raise an error if a readout has no probability of a single label: none fitted, and no `clip.bias` to add."""
        leave = f"leave out {option(multi_label=True)}"
        if self.calibrated(readout):
            return
        if not self.clip.bias:
            raise BackboneError(
                f"{short_name(self.clip.name)} was trained with a softmax over texts, so a probability of each label "
                f"can only be fitted on labelled photos, for the run's own classes and readout: {leave}, run 'dear "
                "calibrate RUN' first, or train on a CLIP with a sigmoid loss, such as ViT-B-16-SigLIP2."
            )
        if not self.is_disabled and (self.method.log_probabilities or not self.method.needs.novel):
            raise ConfigError(
                f"The scores of {self.name} are not cosines with texts, so the bias of {short_name(self.clip.name)} "
                f"does not turn them into probabilities of single labels: {leave}, or use another method."
            )

    # What is trained, saved and exported -----------------------------------------------------------------------------

    def trainable(self) -> dict[str, nn.Parameter]:
        """All parameters that training may change, by name."""
        return self.method.trained

    def requires_grad_(self, requires_grad: bool = True) -> Model:
        """Switch training of the method on or off; CLIP stays frozen."""
        self.method.requires_grad_(requires_grad)
        return self

    def train(self, mode: bool = True) -> Model:
        """Set the mode of the method; CLIP stays in evaluation mode."""
        self.training = mode
        self.method.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The method's parameters and buffers, without CLIP's."""
        return self.method.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the result of `state_dict`."""
        return self.method.load_state_dict(state_dict, strict, assign)

    def baked(self) -> Baked:
        """The module to export, from images to logits; the class features are constants in it."""
        with torch.no_grad():
            return Baked(self.clip, self.method, self.text(), self.names())

    def predict(self, images: Any, classes: Sequence[str] | None = None, **options: Any) -> list[Prediction]:
        """Classify images: see `dear.model.predict.predict`."""
        return predict(self, images, classes, **options)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Save the adapter (without CLIP): config, tensors, files and a card. Load it with `dear.load`."""
        return save(self, folder, overwrite=overwrite)

    def __repr__(self) -> str:
        """One line instead of the module tree."""
        own, frozen = (sum(p.numel() for p in part.parameters()) for part in (self.method, self.clip))
        classes = f", {len(self.classes.names)} classes" if self.classes else ""
        return f"Model({self.name} on {self.clip.name}{classes}, {own:,} parameters beside CLIP's {frozen:,})"
