"""MaPLe, VPT, IVLP, PromptSRC, ProVP, SkipTuning: `settings` in the JSON → a case."""

import torch

from vectors.compare import Case, classes_of


def features(run):
    """Unit features of the step's images and classes."""
    out = run.model(run.tensors["input/images"])
    return {"out/image_features": out.features["cls"], "out/text_features": out.classes}


def maple(facts, tensors) -> Case:
    told = facts["settings"]
    config = {"words": told["ctx_init"] or "", "context": told["n_ctx"], "depth": told["prompt_depth"]}

    def found(run):
        return {**features(run), "out/vision_prompt_0": run.model.method.image_rows()[0]}

    return Case("maple", config, classes_of(facts), found=found)


READERS = {"maple": maple}


def prompts_dropped_after_the_depth(monkeypatch):
    """Image rows are removed where no new ones come in."""
    from dear.methods import maple

    def dropped(clip, rows, layers):
        count = rows.shape[1]

        def edit(layer, x):
            if layer > len(layers):
                return x[:, :count]
            fresh = clip.vision.norm_in(layers[0]) if layer == 1 else layers[layer - 1]
            return torch.cat([x[:, :count], fresh.expand(len(x), -1, -1)], 1)

        return clip.vision.read(clip.vision.run(rows, edit=edit)[:, 0])

    monkeypatch.setattr(maple, "prompted_image", dropped)


SPOILT = {"maple": {"prompts are dropped after the depth": prompts_dropped_after_the_depth}}
