"""Let a language model write sentences about classes, as a file for --descriptions.

    python benchmarks/write_descriptions.py LM CLASSES --out descriptions.json

LM is a folder or a name on the hub, CLASSES a text file with one class name per line, or a CoOp split (JSON). Each
prompt is continued greedily, so the same model writes the same sentences. Only the text before the first full stop is
used. Nothing is selected by hand, and no image is looked at.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers

PROMPTS = (
    "A photo of {} shows",
    "In a photo, you can recognize {} by",
    "The most distinctive visual feature of {} is",
    "The shape and the colors of {} are",
)
TOKENS = 32
"""Most tokens that are written per sentence."""


def class_names(path: Path) -> list[str]:
    """Names of classes: the lines of a text file, or those of a split in CoOp's format by label."""
    if path.suffix != ".json":
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    split = json.loads(path.read_text())
    by_label = {int(label): str(name) for part in split.values() for _, label, name in part}
    return [by_label[label].replace("_", " ") for label in sorted(by_label)]


def with_article(name: str) -> str:
    """A name with "a" or "an"."""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


@torch.inference_mode()
def sentence(lm: Any, tokenizer: Any, prompt: str) -> str:
    """A prompt with its greedy continuation, up to the first full stop or line break."""
    asked = tokenizer(prompt, return_tensors="pt")
    found = lm.generate(**asked, max_new_tokens=TOKENS, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    written = tokenizer.decode(found[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    first = written.strip().splitlines()[0] if written.strip() else ""
    return f"{prompt} {first.partition('.')[0].strip()}".strip() + "."


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lm")
    parser.add_argument("classes", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lm = transformers.AutoModelForCausalLM.from_pretrained(options.lm, use_safetensors=True, trust_remote_code=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.lm, trust_remote_code=False)
    lm = lm.float().eval()
    found = {}
    for name in class_names(options.classes):
        prompts = [prompt.format(with_article(name)) for prompt in PROMPTS]
        found[name] = list(dict.fromkeys(sentence(lm, tokenizer, prompt) for prompt in prompts))
        print(f"{name}: {found[name][0]}")
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
