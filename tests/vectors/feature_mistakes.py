"""Mistakes in methods on finished features that the files must notice, by file."""

import numpy as np
import torch

from dear.methods.base import unit


def no_last_relu(monkeypatch):
    from dear.methods.clip_adapter import ClipAdapter

    monkeypatch.setattr(ClipAdapter, "adapted", lambda self, feature: self.up(self.down(feature).relu()))


def ratio_swapped(monkeypatch):
    from dear.methods import clip_adapter

    right = clip_adapter.ClipAdapter.__init__

    def swapped(self, *args, **kwargs):
        right(self, *args, **kwargs)
        self.ratio.copy_(1 - self.ratio)

    monkeypatch.setattr(clip_adapter.ClipAdapter, "__init__", swapped)


def unit_before_the_mean(monkeypatch):
    from dear.methods.parts.caches import CacheMethod

    def begin(self, clip, draw):
        self.remember(clip, unit(unit(draw.image["feature"]).mean(0)), draw.labels, draw.classes)

    monkeypatch.setattr(CacheMethod, "begin", begin)


def one_unit_too_few(monkeypatch):
    """Sentences are averaged without being made unit length first."""
    from dear.methods.parts import class_features as sentences

    class Once:
        def __init__(self):
            self.calls = 0

        def __call__(self, features):
            self.calls += 1
            return features if self.calls % 2 else unit(features)

    monkeypatch.setattr(sentences, "unit", Once())


def grid_reaches_its_end(monkeypatch):
    from dear.methods.parts import caches as cache

    def reaching(scale, steps, first):
        return [first + i * (scale - first) / max(1, steps - 1) for i in range(steps)]

    monkeypatch.setattr(cache, "grid_values", reaching)


def last_best(monkeypatch):
    from dear.methods.parts import caches as cache

    def last(right):
        place = right.size - 1 - right[::-1, ::-1].argmax()
        return np.unravel_index(place, right.shape)

    monkeypatch.setattr(cache, "first_best", last)


def keys_made_unit(monkeypatch):
    from dear.methods.parts.caches import CacheMethod

    monkeypatch.setattr(CacheMethod, "affinity", lambda self, f: unit(self.keys) @ f.T)


def rate_stays(monkeypatch):
    import vectors.compare

    monkeypatch.setattr(vectors.compare, "rate", lambda recipe, base, *_: base)


def natural_logarithm(monkeypatch):
    from dear.methods import ape

    monkeypatch.setattr(ape.torch, "log2", torch.log)


def pairs_of_one_class_count(monkeypatch):
    from dear.methods import ape, ape_t

    def all_pairs(weights, keys=None, labels=None):
        rows = weights if keys is None else torch.cat([weights, keys])
        return rows.mean(0) ** 2

    monkeypatch.setattr(ape, "similarity", all_pairs)
    monkeypatch.setattr(ape_t, "similarity", all_pairs)


def criterion_with_images(monkeypatch):
    """Channels as after a run of ape."""
    from dear.methods import ape_t
    from dear.methods.ape import similarity
    from dear.methods.parts.caches import CacheMethod

    known, right = [], CacheMethod.remember

    def remember(self, clip, keys, labels, classes):
        right(self, clip, keys, labels, classes)
        known[:] = [keys, labels]

    monkeypatch.setattr(CacheMethod, "remember", remember)
    monkeypatch.setattr(ape_t, "similarity", lambda weights: similarity(weights, *known))


def text_keeps_its_place(monkeypatch):
    """The residual moves keys alone."""
    from dear.methods.parts.caches import CacheMethod

    def parts(self, clip, feature, text):
        affinity = self.affinity(feature) + self.moved(feature)[self.labels]
        return clip.temperature * feature @ text.weights.T, affinity

    monkeypatch.setattr(CacheMethod, "parts", parts)


def image_does_not_see_itself(monkeypatch):
    from dear.methods import mm_adapter

    class Torch:
        def __getattr__(self, name):
            return getattr(torch, name)

        def cat(self, parts, dim):
            return torch.cat([parts[0], parts[1] - 100], dim)

    monkeypatch.setattr(mm_adapter, "torch", Torch())


def ratios_of_the_output(monkeypatch):
    """The attention's output is blended before it is made unit length."""
    from dear.methods.mm_adapter import MMAdapter

    def adapted(self, mixed):
        return self.upsampler(self.mha.out_proj(mixed.flatten(-2)))

    monkeypatch.setattr(MMAdapter, "adapted", adapted)


def classes_of_equal_length(monkeypatch):
    """Moved class features are not made unit length."""
    from dear.methods.mm_adapter import MMAdapter

    def blocked(self, image, keys, values, text):
        ratio, towards = self.config.text_ratio, self.adapted(values)
        return ratio * (image * towards).sum(1, keepdim=True) + (1 - ratio) * image @ text.features.T

    monkeypatch.setattr(MMAdapter, "_blocked", blocked)


def features_in_single_precision(monkeypatch):
    from dear.methods import linear_probe

    class Numpy:
        float64 = np.float32

        def __getattr__(self, name):
            return getattr(np, name)

    monkeypatch.setattr(linear_probe, "np", Numpy())


def penalised_intercept(monkeypatch):
    from dear.methods import linear_probe

    right = linear_probe.LogisticRegression

    class Penalised(right):
        def fit(self, x, y):
            super().fit(np.concatenate([x, np.ones((len(x), 1))], 1), y)
            self.intercept_, self.coef_ = self.intercept_ + self.coef_[:, -1], self.coef_[:, :-1]
            self.n_features_in_ = x.shape[1]
            return self

    monkeypatch.setattr(linear_probe, "LogisticRegression", Penalised)


SPOILT = {
    "ape": {"natural logarithm": natural_logarithm, "pairs of one class count": pairs_of_one_class_count},
    "ape_t": {"criterion with images": criterion_with_images, "the text keeps its place": text_keeps_its_place},
    "clip_adapter": {"no ReLU at the end": no_last_relu, "the ratio of the other": ratio_swapped},
    "linear_probe": {"single precision": features_in_single_precision, "penalised intercept": penalised_intercept},
    "mm_adapter": {
        "the image does not see itself": image_does_not_see_itself,
        "blended before unit length": ratios_of_the_output,
    },
    "mm_adapter-blocked": {"classes are not made unit length": classes_of_equal_length},
    "tip_adapter": {
        "unit length before the mean": unit_before_the_mean,
        "sentences of any length": one_unit_too_few,
        "the grid reaches its end": grid_reaches_its_end,
        "the last best wins": last_best,
    },
    "tip_adapter_f": {"keys are made unit length": keys_made_unit, "the rate stays": rate_stays},
}
