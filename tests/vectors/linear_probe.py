"""Linear probe: `settings` and `runs` in the JSON → a case."""

import re

import numpy as np
import torch

from dear.methods.linear_probe import Probe, published_draw
from vectors.compare import Case, classes_of

EXACT = 0.0
KINDS = ("features", "labels")


def linear_probe(facts, tensors) -> Case:
    """Features in the place of images: the method's own functions are asked."""
    settings, names = facts["settings"], ("tried", "accuracy", "chosen", "test")
    keys = dict(zip(names, ("C_of_fits", "val_acc_of_fits", "chosen_C_per_step", "test_acc_per_step"), strict=True))
    in_full = re.match(r"(\d+) shots?, seed (\d+)", facts.get("names", {}).get("fit/*", "4 shots, seed 1"))
    config = {"coarse": tuple(float(C) for C in settings["coarse_C"]), "steps": settings["num_step"]}
    x, y = ({part: tensors[f"input/{part}_{kind}"].numpy() for part in ("train", "val", "test")} for kind in KINDS)
    theirs = {
        f"{name}.{run['shots']}shot.seed{run['seed']}": torch.tensor(run[keys[name]], dtype=torch.float64)
        for run in facts["runs"]
        for name in names
    }

    def found(run):
        ours = {}
        for one in facts["runs"]:
            where = f"{one['shots']}shot.seed{one['seed']}"
            rows, held = published_draw(
                y["train"], y["val"], one["shots"], one["seed"], settings["val_shots"][str(one["shots"])]
            )
            ours |= {
                f"draw/train_index.{where}": torch.from_numpy(rows),
                f"draw/val_index.{where}": torch.from_numpy(held),
            }
            probe = Probe(x["train"][rows], y["train"][rows])
            got = probe.search(x["val"][held], y["val"][held], config["coarse"], config["steps"])
            shown = x["test"].astype(np.float64)
            right = [100 * np.mean(probe.fit(C).predict(shown) == y["test"]) for C in got.chosen]
            values = (got.tried, got.accuracy, got.chosen, right)
            ours |= {
                f"{name}.{where}": torch.tensor(value, dtype=torch.float64)
                for name, value in zip(names, values, strict=True)
            }
            if in_full and (one["shots"], one["seed"]) == (int(in_full[1]), int(in_full[2])):
                ours |= full_fits(run, probe, x, y, rows)
        return ours

    tolerance = {name: EXACT for name in (*theirs, *tensors) if not name.startswith(("fit/", "input/"))}
    tolerance |= {name: 1e-9 for name in theirs if name.startswith("test")}
    tolerance |= {name: 1e-3 for name in tensors if name.startswith("fit/") and not name.endswith("objective")}
    tolerance |= {name: 1e-4 * float(t) for name, t in tensors.items() if name.endswith(".objective")}
    how = {"found": found, "expected": theirs, "tolerance": tolerance}
    return Case("linear_probe", config, classes_of(facts), **how)


def full_fits(run, probe, x, y, rows) -> dict:
    """Fits as the method keeps and uses them."""
    ours, model = {}, run.model
    for name in sorted({name.split(".")[0] for name in run.tensors if name.startswith("fit/")}):
        C = float(name.removeprefix("fit/C"))
        fit = probe.fit(C)
        model.method.remember(fit, model.required_classes())
        trained = torch.from_numpy(fit.decision_function(x["train"][rows].astype(np.float64)))
        crossed = torch.nn.functional.cross_entropy(trained, torch.from_numpy(y["train"][rows]), reduction="sum")
        ours |= {
            f"{name}.coef": model.method.coef.clone(),
            f"{name}.intercept": model.method.intercept.clone(),
            f"{name}.decision_test": model(given={"feature": run.tensors["input/test_features"]}).logits,
            f"{name}.objective": 0.5 * torch.from_numpy(fit.coef_).square().sum() + C * crossed,
        }
    return ours
