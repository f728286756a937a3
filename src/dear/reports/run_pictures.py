"""Selects test images for a run's page: corrections, mistakes, and confused classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image

from dear.data.dataset import Dataset, Item
from dear.errors import ImageError
from dear.evaluation.evaluate import Evaluation
from dear.evaluation.results import PerClass
from dear.reports.render import Picture
from dear.reports.run_page import ClassBar, ConfusedPair

SHOWN, PAIRS = 8, 6
SIDE = 112


@dataclass(frozen=True)
class Answers:
    """The answers to the test images of a half, and the images themselves."""

    dataset: Dataset
    items: Sequence[Item]
    class_names: Sequence[str]
    found: Evaluation

    def truth(self, index: int) -> str:
        """The name of an image's class."""
        return self.class_names[self.items[index].label]

    def pick(self, index: int) -> int:
        """The index of the picked class, -1 if the image is unreadable."""
        return int(self.found.picks[index])

    def plain_pick(self, index: int) -> int:
        """The index of the class that plain CLIP picks."""
        return -1 if self.found.plain_picks is None else int(self.found.plain_picks[index])

    def by_certainty(self, wanted: Callable[[int], bool]) -> list[int]:
        """Readable images that fulfil a condition, the most certain answer first."""
        chosen = (i for i in range(len(self.items)) if self.pick(i) >= 0 and wanted(i))
        return sorted(chosen, key=lambda i: (-float(self.found.confidence[i]), i))

    def right(self, index: int) -> bool:
        """Whether an image is named correctly."""
        return self.pick(index) == self.items[index].label

    def plain_right(self, index: int) -> bool:
        """Whether plain CLIP names an image correctly."""
        return self.plain_pick(index) == self.items[index].label

    def picture(self, index: int, caption: str) -> Picture:
        """A test image with a caption."""
        return Picture(small_picture(self.dataset, self.items[index]), caption)

    def varied(self, indices: Sequence[int]) -> list[int]:
        """Reorder: the first image of every class, then the second of every class, and so on."""
        seen: Counter[int] = Counter()
        ranked = []
        for position, index in enumerate(indices):
            label = self.items[index].label
            ranked.append((seen[label], position, index))
            seen[label] += 1
        return [index for _, _, index in sorted(ranked)]


def corrections(answers: Answers) -> dict[str, list[Picture]]:
    """Images that only the adapter names correctly, and images that only plain CLIP names correctly."""
    names = answers.class_names
    better = answers.by_certainty(lambda i: answers.right(i) and not answers.plain_right(i))
    worse = answers.by_certainty(lambda i: answers.plain_right(i) and not answers.right(i))
    strips = {
        "Corrected": [
            answers.picture(i, f"{answers.truth(i)} (plain CLIP: {names[answers.plain_pick(i)]})")
            for i in answers.varied(better)[:SHOWN]
        ],
        "New mistakes": [
            answers.picture(i, f"{names[answers.pick(i)]} (is {answers.truth(i)})")
            for i in answers.varied(worse)[:SHOWN]
        ],
    }
    return {title: strip for title, strip in strips.items() if strip}


def corrections_note(answers: Answers) -> str:
    """A sentence with the number of corrected mistakes of plain CLIP and the number of new ones."""
    indices = range(len(answers.items))
    mistakes = sum(not answers.plain_right(i) for i in indices)
    better = sum(answers.right(i) and not answers.plain_right(i) for i in indices)
    worse = sum(answers.plain_right(i) and not answers.right(i) for i in indices)
    if not better + worse:
        return ""
    made = {0: "no new ones", 1: "1 new one"}.get(worse, f"{worse:,} new ones")
    corrected = "none" if not better else f"{better:,}"
    some = "1 mistake" if mistakes == 1 else f"{mistakes:,} mistakes"
    return f"The adapter corrects {corrected} of plain CLIP's {some} and makes {made}."


def examples(answers: Answers) -> dict[str, list[Picture]]:
    """The most certain mistakes, the least certain answers and the most certain ones."""
    order = answers.by_certainty(lambda _: True)
    wrong = [i for i in order if not answers.right(i)]

    def shown(index: int) -> Picture:
        sure = f"{100 * float(answers.found.confidence[index]):.0f} % {answers.class_names[answers.pick(index)]}"
        return answers.picture(index, sure if answers.right(index) else f"{sure} (is {answers.truth(index)})")

    strips = {
        "Most certain and wrong": wrong[:SHOWN],
        "Least certain": order[-SHOWN:][::-1],
        "Most certain": order[:SHOWN],
    }
    return {title: [shown(i) for i in indices] for title, indices in strips.items() if indices}


def confused(answers: Answers) -> list[ConfusedPair]:
    """The pairs of classes that are confused most often, with an image of each."""
    totals = Counter(item.label for item in answers.items)
    wrong = answers.by_certainty(lambda i: not answers.right(i))
    counts = Counter((answers.items[i].label, answers.pick(i)) for i in wrong)
    right = {answers.pick(i): i for i in reversed(answers.by_certainty(answers.right))}
    first = {(answers.items[i].label, answers.pick(i)): i for i in reversed(wrong)}
    order = sorted(counts, key=lambda pair: (-counts[pair] / totals[pair[0]], pair))
    found = []
    for is_, taken in order[:PAIRS]:
        names = answers.class_names[is_], answers.class_names[taken]
        pictures = [answers.picture(first[is_, taken], f"{names[0]}, taken for {names[1]}")]
        pictures += [answers.picture(right[taken], f"{names[1]}, named correctly")] if taken in right else []
        found.append(ConfusedPair(*names, counts[is_, taken], totals[is_], pictures))
    return found


def class_bars(found: Evaluation) -> list[ClassBar]:
    """Accuracy of every class with images, the weakest class first."""
    plain = found.plain
    bars = [
        ClassBar(name, one.images, one.accuracy[found.readout], _plain_share(plain.per_class[name]) if plain else None)
        for name, one in found.scores.per_class.items()
        if one.images
    ]
    return sorted(bars, key=lambda bar: bar.adapted)


def _plain_share(one: PerClass) -> float:
    return next(iter(one.accuracy.values()))


def small_picture(dataset: Dataset, item: Item) -> Image.Image:
    """A small copy of a test image, or a grey square if it cannot be read."""
    try:
        image = dataset.open(item.id)
    except ImageError:
        return Image.new("RGB", (SIDE, SIDE), "#dfe3e8")
    image.thumbnail((2 * SIDE, 2 * SIDE))
    return image
