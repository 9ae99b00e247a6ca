"""The regions of images as packed sequences: one region per token, after the image as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.region_files import WHOLE_IMAGE, ImageRegions, RegionFiles
from pretune.text.packing.sequences import Sequences
from pretune.text.spans import span_indices


@dataclass
class RegionSequences:
    """The regions of one image per text, which are read when a batch needs them.

    The first token of a sequence is the image as a whole, with the mean features of the regions; the column `special`
    marks it. The columns `features`, (n, width), and `locations`, (n, 5), are read by the model; `classes`, (n,
    classes), has the class probabilities of the detector, if all images have them. The label `image` is equal for
    texts of the same image.
    """

    files: RegionFiles
    images: Sequence[str | ImageRegions]  # of each text: FILE.tsv#ID or FILE.npy, or in memory
    numbers: Array  # (texts,) equal for the same image
    lengths: Array  # (texts,)

    @classmethod
    def make(cls, images: Sequence[str | ImageRegions], length: int) -> RegionSequences:
        """Find the images in their files, and count their regions; at most `length` - 1 regions of an image are used."""
        files = RegionFiles()
        known: dict[str | int, int] = {}  # path, or identity of an image in memory → number
        numbers = np.array([known.setdefault(x if isinstance(x, str) else id(x), len(known)) for x in images])
        _, first = np.unique(numbers, return_index=True)
        counts = np.array([files.count(images[row]) for row in first])
        return cls(files, images, numbers, 1 + np.minimum(counts, length - 1)[numbers])

    def choose(self, chosen: Array) -> RegionSequences:
        """Return the regions of the texts at the indices `chosen`, which may repeat."""
        images = [self.images[row] for row in chosen]
        return replace(self, images=images, numbers=self.numbers[chosen], lengths=self.lengths[chosen])

    def take(self, chosen: Array) -> Sequences:
        """Return the regions of the images of the texts at the indices `chosen` as sequences."""
        lengths = self.lengths[chosen]
        features, locations, classes = [], [], []
        for row, length in zip(chosen, lengths, strict=True):
            regions = self.files.read(self.images[row])
            count = length - 1
            features += [np.zeros_like(regions.features[:1]), regions.features[:count]]
            locations += [np.array([WHOLE_IMAGE], dtype=np.float32), regions.locations[:count]]
            if regions.classes is not None:
                classes += [np.zeros_like(regions.classes[:1]), regions.classes[:count]]
            if features[-1].shape[1] != features[0].shape[1]:
                raise PretuneError(
                    f"{self.images[row]}: the features of a region are {features[-1].shape[1]} numbers, and those of "
                    f"{self.images[chosen[0]]} {features[0].shape[1]}; extract the features of all images with the same detector"
                )
        columns = {
            "features": np.concatenate(features) if features else np.zeros((0, 0), dtype=np.float32),
            "locations": np.concatenate(locations) if locations else np.zeros((0, 5), dtype=np.float32),
        }
        if classes and len(classes) == len(features) and len({part.shape[1] for part in classes}) == 1:
            columns["classes"] = np.concatenate(classes)
        sequences = Sequences(
            ids=np.zeros(int(lengths.sum()), dtype=np.int64),
            lengths=lengths,
            index=np.asarray(chosen),
            columns=columns,
            labels={"image": self.numbers[chosen]},
        )
        columns["special"] = sequences.index_in_sequence == 0
        return with_mean_features(sequences)


def with_mean_features(regions: Sequences, hidden: Array | None = None) -> Sequences:
    """Set the features of each image as a whole to the mean of the features of its regions, and return the sequences.

    Regions where the mask `hidden`, (n,), is True do not count; the mean of no regions is 0.
    """
    first = regions.columns["special"]
    counted = ~first if hidden is None else ~(first | hidden)
    features = regions.columns["features"]
    owner = regions.owner[counted]
    totals = np.zeros((len(regions.lengths), features.shape[1]), dtype=np.float64)
    np.add.at(totals, owner, features[counted])
    counts = np.bincount(owner, minlength=len(regions.lengths)).clip(min=1)
    features[first] = totals / counts[:, None]
    return regions


def reorder_images(regions: Sequences, order: Array) -> Sequences:
    """Return the regions in another order of images: image i of the result is image `order[i]` of `regions`."""
    at = span_indices(regions.offsets[:-1][order], regions.lengths[order])
    return Sequences(
        ids=regions.ids[at],
        lengths=regions.lengths[order],
        index=regions.index,
        columns={name: values[at] for name, values in regions.columns.items()},
        labels={name: values[order] for name, values in regions.labels.items()},
    )
