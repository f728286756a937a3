"""Commands that must be refused, and a part of the sentence that does so; words in capitals are paths."""

BAD = {
    "no data": (["train", "PHOTO", "--out", "OUT"], "There is no data set 'PHOTO'"),
    "no weights": (["train", "PHOTOS", "--out", "OUT", "--clip", "ViT-B-32"], "ViT-B-32 needs weights"),
    "no clip": (["train", "PHOTOS", "--out", "OUT"], "add --clip ViT-B-16-quickgelu --pretrained openai"),
    "weights of what": (["train", "world-blooms", "--out", "OUT", "--pretrained", "x"], "name it with --clip"),
    "no roles": (
        ["train", "PHOTOS", "--out", "OUT", "--clip", "CLIP", "--pretrained", "random", "--shots", "2"],
        "no role map",
    ),
    "half": (["train", "PHOTOS", "--out", "OUT", "--half", "some"], "--half is 'some': give all, base or novel."),
    "set": (["train", "PHOTOS", "--out", "OUT", "--set", "beta"], "give NAME=VALUE once per name, as in beta=0.8."),
    "set twice": (
        ["train", "PHOTOS", "--out", "OUT", "--set", "beta=1", "--set", "beta=2"],
        "give NAME=VALUE once per name",
    ),
    "lr": (["train", "PHOTOS", "--out", "OUT", "--lr", "0"], "lr is 0.0"),
    "precision": (["train", "PHOTOS", "--out", "OUT", "--precision", "fp64"], "precision is 'fp64'"),
    "no root": (["train", "dtd", "--out", "OUT"], "name it with --data-root FOLDER"),
    "absent": (["train", "dtd", "--out", "OUT", "--data-root", "EMPTY"], "DTD is not in"),
    "one class": (["train", "ONE", "--out", "OUT"], "has only one class folder, ant"),
    "empty class": (["train", "HOLLOW", "--out", "OUT"], "bee has no images: add some, or remove the folder."),
    "no run": (["eval", "EMPTY"], "does not record its data set"),
    "no folder": (["eval", "runs/none"], "runs/none does not exist: give the folder of a run or adapter"),
    "no adapter": (["eval", "EMPTY", "PHOTOS"], "is not an adapter"),
    "predict from nothing": (["predict", "EMPTY", "IMAGE"], "is not an adapter"),
    "no class list": (["predict", "MADE", "IMAGE", "--names", "none.txt"], "There is no file none.txt"),
    "two class lists": (["predict", "MADE", "IMAGE", "--names", "x", "--classes", "a"], "choose one of them"),
    "a class list of bytes": (
        ["predict", "MADE", "IMAGE", "--names", "IMAGE"],
        "is not a list of class names in UTF-8",
    ),
    "recipe": (
        ["train", "PHOTOS", "--out", "OUT", "--recipe", "mine"],
        "--recipe is 'mine': give own, shared or tuned.",
    ),
    "no classes": (["predict", "MADE", "IMAGE", "--classes", " , "], "--classes is ' , ': give names."),
    "readout": (["predict", "MADE", "IMAGE", "--readout", "both"], "dear has no readout 'both': choose fusion or"),
}
