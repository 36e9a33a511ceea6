"""Pictures of any kind become one size, each by itself; what is no picture, or not declared, is refused by name."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.pictures.reading import FITS, PictureForm, eight_bits, read_pictures
from lightning_dpgen.sampling.errors import BadRecords

quick = settings(max_examples=25, deadline=None)
sizes, large = st.integers(1, 9), st.integers(4, 12)
fits = st.sampled_from(FITS)


def _random(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def _folder(root, pictures):
    """Write PNG files and return their paths."""
    for name, picture in pictures.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(root / name)
    return root


def _box(values, height, width):
    """Compute means over areas by the overlap of each pixel with each area: an oracle for whole (h, w) pictures."""

    def overlaps(size, target):
        weights = np.zeros((target, size))
        for i in range(target):
            low, high = i * size / target, (i + 1) * size / target
            for j in range(size):
                weights[i, j] = max(0.0, min(high, j + 1) - max(low, j))
        return weights / weights.sum(axis=1, keepdims=True)

    return overlaps(values.shape[0], height) @ values @ overlaps(values.shape[1], width).T


@quick
@given(n=st.integers(1, 5), height=sizes, width=sizes, colour=st.booleans(), classes=st.booleans())
def test_what_is_written_is_read(tmp_path_factory, n, height, width, colour, classes):
    images = _random(n, height, width, *((3,) if colour else ()))
    names = ("cat", "dog", "no pictures of this")
    labels = np.arange(n) % 2
    root = _folder(
        tmp_path_factory.mktemp("p"),
        {(f"{names[labels[i]]}/" if classes else "") + f"{i:03d}.png": image for i, image in enumerate(images)},
    )
    order = np.lexsort((np.arange(n), labels if classes else np.zeros(n)))
    found, found_labels = read_pictures(root, height, width, channels=3 if colour else 1, classes=names if classes else ())
    assert found.dtype == np.uint8 and np.array_equal(found, images[order])
    assert np.array_equal(found_labels, labels[order]) if classes else found_labels is None
    np.savez(root.parent / f"{root.name}.npz", images=images, labels=labels)
    np.save(root.parent / f"{root.name}.npy", images)
    for suffix in ("npz", "npy"):
        found, found_labels = read_pictures(
            root.parent / f"{root.name}.{suffix}", height, width, channels=3 if colour else 1,
            classes=3 if suffix == "npz" else (),
        )  # fmt: skip
        assert np.array_equal(found, images)
        assert np.array_equal(found_labels, labels) if suffix == "npz" else found_labels is None


@quick
@given(h=large, w=large, height=st.integers(1, 4), width=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_larger_picture_becomes_means_over_areas(h, w, height, width, seed):
    picture = _random(h, w, seed=seed)
    found = PictureForm(height, width).of(Image.fromarray(picture)).astype(float)
    # A pixel that an area covers in part counts by whether its middle is within: only whole ones are compared. Rows and
    # columns are taken one after the other, so that a mean is rounded twice.
    exact = _box(picture.astype(float), height, width)
    if h % height == 0 and w % width == 0:
        assert np.abs(found - exact).max() <= 1.0 + 1e-9
    assert found.min() >= picture.min() and found.max() <= picture.max()


@quick
@given(h=st.integers(1, 30), w=st.integers(1, 30), height=sizes, width=sizes, fit=fits)
def test_every_picture_gets_the_size(h, w, height, width, fit):
    for channels in (1, 3):
        form = PictureForm(height, width, channels, fit=fit)
        white = form.of(Image.new("RGB", (w, h), "white"))
        assert white.shape == form.shape and white.dtype == np.uint8
        # White stays white, and what is padded is black: a border, never the middle.
        assert set(np.unique(white)) <= ({0, 255} if fit == "pad" else {255})
        assert white[(height - 1) // 2, (width - 1) // 2].min() == 255


def test_padding_and_cropping_keep_the_aspect():
    wide = Image.fromarray(np.array([[10, 20, 30, 40], [10, 20, 30, 40]], np.uint8))
    assert PictureForm(4, 4, fit="pad").of(wide).tolist() == [[0] * 4, [10, 20, 30, 40], [10, 20, 30, 40], [0] * 4]
    assert PictureForm(2, 2, fit="crop").of(wide).tolist() == [[20, 30], [20, 30]]
    assert PictureForm(2, 2).of(wide).tolist() == [[15, 35], [15, 35]]


def test_a_very_narrow_picture_leaves_a_trace():
    for size in ((1000, 1), (1, 1000)):
        for fit in ("pad", "crop", "stretch"):
            assert PictureForm(4, 4, fit=fit).of(Image.new("L", size, 255)).max() == 255


def _modes():
    grey = _random(4, 5)
    clear = np.dstack([np.full((4, 5, 3), 40, np.uint8), np.zeros((4, 5), np.uint8)])
    half = np.dstack([np.zeros((4, 5, 3), np.uint8), np.full((4, 5), 128, np.uint8)])
    palette = Image.fromarray(grey).convert("P")
    see_through = Image.fromarray(np.zeros((4, 5), np.uint8)).convert("P")
    see_through.info["transparency"] = see_through.getpixel((0, 0))
    wide = (np.arange(20).reshape(4, 5) * 3449).astype(np.uint16)
    return {
        "grey": (Image.fromarray(grey), grey),
        "palette": (palette, grey),
        "one bit": (Image.fromarray(grey > 127), (grey > 127) * 255),
        "see-through": (Image.fromarray(clear), 255),
        "half": (Image.fromarray(half), 127),
        "see-through palette": (see_through, 255),
        "grey with alpha": (Image.fromarray(half).convert("LA"), 127),
        "16 bits": (Image.fromarray(wide), np.rint(wide / 257)),
        "colour": (Image.fromarray(np.dstack([grey] * 3)), grey),
    }


@pytest.mark.parametrize("name", _modes())
@pytest.mark.parametrize("channels", [1, 3])
def test_modes(tmp_path, name, channels):
    picture, expected = _modes()[name]
    found, _ = read_pictures(_folder(tmp_path, {"x.png": picture}), 4, 5, channels=channels)
    assert np.array_equal(found[0] if channels == 1 else found[0, ..., 1], np.broadcast_to(expected, (4, 5)))


def test_sixteen_bits_are_rounded():
    values = np.arange(65536)
    assert np.array_equal(eight_bits(values), np.rint(values / 257).astype(np.uint8))
    assert eight_bits(np.array([0, 65535], np.uint16)).tolist() == [0, 255]


def test_photographs(tmp_path):
    """JPEG in grey, colour and CMYK, held sideways, of different sizes."""
    exif = Image.Exif()
    exif[0x0112] = 6
    left = np.zeros((8, 16, 3), np.uint8)
    left[:, :8] = 255
    Image.fromarray(left).save(tmp_path / "a.jpg", exif=exif, quality=95)
    Image.new("L", (30, 10), 100).save(tmp_path / "b.JPEG")
    Image.new("CMYK", (3, 3), 0).save(tmp_path / "c.jpeg")
    (tmp_path / ".DS_Store").write_bytes(b"x")
    for name in ("Thumbs.db", "desktop.ini"):
        (tmp_path / name).write_bytes(b"x")
    found, _ = read_pictures(tmp_path, 16, 8)
    assert found.shape == (3, 16, 8)
    # Turned by a quarter, so that what was left is on top.
    assert found[0, :6].min() > 245 and found[0, 10:].max() < 10
    assert set(np.unique(found[1])) == {100} and found[2].min() == 255


@quick
@given(seed=st.integers(0, 99), at=st.integers(0, 3), height=sizes, width=sizes, fit=fits)
def test_a_picture_more_changes_no_other(tmp_path_factory, seed, at, height, width, fit):
    random = np.random.default_rng(seed)
    pictures = {f"{i}.png": _random(*random.integers(1, 12, 2), 3, seed=seed + i) for i in (0, 2, 4)}
    root = tmp_path_factory.mktemp("p")
    before, _ = read_pictures(_folder(root, pictures), height, width, fit=fit)
    after, _ = read_pictures(_folder(root, {f"{2 * at - 1}.png": _random(5, 5)}), height, width, fit=fit)
    # Sorted as text, "-1" is first.
    assert np.array_equal(np.delete(after, at, axis=0), before)


def _npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_arrays_of_other_forms(tmp_path):
    images = _random(4, 6, 8, 3)
    path = tmp_path / "x.npz"
    for array in (images, np.moveaxis(images, 3, 1)):
        assert np.array_equal(read_pictures(_npz(path, images=array), 6, 8, channels=3)[0], images)
    assert np.array_equal(read_pictures(_npz(path, images=images[..., :1]), 6, 8)[0], images[..., 0])
    assert np.array_equal(read_pictures(_npz(path, images=images[:, None, :, :, 0]), 6, 8)[0], images[..., 0])
    assert np.array_equal(read_pictures(_npz(path, images=images / 255), 6, 8, channels=3, high=1)[0], images)
    assert np.array_equal(read_pictures(_npz(path, images=images.astype(np.uint16) * 257), 6, 8, channels=3)[0], images)
    assert np.array_equal(read_pictures(_npz(path, images=images > 99), 6, 8, channels=3)[0], (images > 99) * 255)
    # Other sizes and colours, as the same pictures in files.
    root = _folder(tmp_path / "f", {f"{i}.png": image for i, image in enumerate(images)})
    for channels in (1, 3):
        of_files = read_pictures(root, 3, 5, channels=channels, fit="pad")[0]
        assert np.array_equal(read_pictures(_npz(path, images=images), 3, 5, channels=channels, fit="pad")[0], of_files)
    names = np.array(["dog", "cat", "dog", "dog"])
    assert read_pictures(_npz(path, images=images, labels=names), 6, 8, classes=("cat", "dog"))[1].tolist() == [1, 0, 1, 1]
    # Where channels may be on either side, the size that is asked for decides.
    small = _random(2, 3, 3, 1)
    assert np.array_equal(read_pictures(_npz(path, images=small), 3, 3)[0], small[..., 0])


def test_an_array_file_that_fits_stays_mapped(tmp_path):
    np.save(tmp_path / "x.npy", _random(4, 6, 8, 3))
    found, _ = read_pictures(tmp_path / "x.npy", 6, 8, channels=3)
    assert isinstance(found, np.memmap) or isinstance(found.base, np.memmap)


def _png(width, height):
    """Make a PNG file that claims a size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def _bytes(picture, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, form)
    return file.getvalue()


GOOD = _bytes(_random(4, 4))
FOLDERS = {
    "empty": ({}, (), "holds no pictures"),
    "hidden files": ({".x.png": GOOD}, (), "holds no pictures"),
    "another file": ({"a.png": GOOD, "b.txt": b"x"}, (), r"b.txt: expected a name that ends in \.png"),
    "another kind": ({"a.gif": GOOD}, (), r"a\.gif"),
    "no picture": ({"a.png": b"no"}, (), r"a\.png is not a whole PNG"),
    "empty file": ({"a.png": b""}, (), r"a\.png is not a whole PNG"),
    "cut": ({"a.png": GOOD[:50]}, (), r"a\.png is not a whole PNG"),
    "cut photograph": ({"a.jpg": _bytes(_random(40, 40), "JPEG")[:-300]}, (), r"a\.jpg is not a whole PNG or JPEG"),
    "a bomb": ({"a.png": _png(30_000, 30_000)}, (), r"a\.png .*67,108,864 pixels"),
    "a small bomb": ({"a.png": _png(8193, 8192)}, (), r"a\.png is of 8193 x 8192: expected at most 67,108,864"),
    "no pixels": ({"a.png": _png(0, 5)}, (), r"a\.png"),
    "another class": ({"cat/a.png": GOOD, "cow/a.png": GOOD}, ("cat", "dog"), r"sub-folder 'cow': expected only .*'cat'"),
    "no classes declared": ({"cat/a.png": GOOD}, (), r"sub-folders \('cat'\): declare them as classes"),
    "no sub-folders": ({"a.png": GOOD}, ("cat", "dog"), r"has no sub-folders"),
    "both": ({"a.png": GOOD, "cat/a.png": GOOD}, ("cat", "dog"), r"both files \('a.png'\) and sub-folders \('cat'\)"),
    "too deep": ({"cat/x/a.png": GOOD}, ("cat", "dog"), r"x is a folder within a folder"),
    "empty classes": ({"cat/.x": b""}, ("cat", "dog"), "holds no pictures"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_bad_folders_get_one_clear_line(tmp_path, name):
    files, classes, words = FOLDERS[name]
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    with pytest.raises(BadRecords, match=words) as error:
        read_pictures(tmp_path, 4, 4, classes=classes)
    assert "\n" not in str(error.value)


IMAGES = _random(2, 4, 4)
ARRAYS = {
    "no images": ({"pictures": IMAGES}, {}, r"'pictures'.*named images"),
    "floats": ({"images": IMAGES / 255}, {}, r"float64, of unknown range: declare .*high="),
    "floats beyond": ({"images": IMAGES / 100}, {"high": 1.0}, r"outside 0 to high=1"),
    "NaN": ({"images": IMAGES * np.nan}, {"high": 1.0}, r"NaN"),
    "int64": ({"images": IMAGES.astype(np.int64)}, {}, r"int64, of unknown range"),
    "objects": ({"images": np.array([None, 1])}, {}, r"is not \.npz of plain arrays"),
    "text": ({"images": np.full((2, 4, 4), "x")}, {}, r"expected numbers"),
    "flat": ({"images": IMAGES.reshape(2, 16)}, {}, r"\(2, 16\): expected \(N, h, w\)"),
    "transparent": ({"images": _random(2, 4, 4, 4)}, {}, r"leave transparency out"),
    "ambiguous": ({"images": _random(2, 3, 9, 3)}, {}, r"first or last: save them last, by numpy\.moveaxis"),
    "no size": ({"images": IMAGES[:, :0]}, {}, r"shape"),
    "none": ({"images": IMAGES[:0]}, {}, r"no pictures"),
    "no labels": ({"images": IMAGES}, {"classes": 2}, r"2 classes are declared.*no labels"),
    "too few labels": ({"images": IMAGES, "labels": np.array([1])}, {"classes": 2}, r"shape \(1,\)"),
    "a label beyond": ({"images": IMAGES, "labels": np.array([1, 2])}, {"classes": 2}, r"label 2 of picture 2"),
    "a huge label": ({"images": IMAGES, "labels": np.array([1, 2**63], np.uint64)}, {"classes": 2}, r"of picture 2 is"),
    "a label below": ({"images": IMAGES, "labels": np.array([-1, 0])}, {"classes": 2}, r"label -1 of picture 1"),
    "another name": ({"images": IMAGES, "labels": np.array(["a", "c"])}, {"classes": ("a", "b")}, r"label 'c'"),
    "floats as labels": ({"images": IMAGES, "labels": np.array([0.0, 1.0])}, {"classes": 2}, r"float64"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_bad_arrays_get_one_clear_line(tmp_path, name):
    arrays, options, words = ARRAYS[name]
    with pytest.raises(BadRecords, match=words) as error:
        read_pictures(_npz(tmp_path / "x.npz", **arrays), 4, 4, **options)
    assert "\n" not in str(error.value)


def test_bad_files(tmp_path):
    with pytest.raises(MissingData, match="nowhere"):
        read_pictures(tmp_path / "nowhere", 4, 4)
    for name in ("x.npz", "x.npy", "x.tar"):
        (tmp_path / name).write_bytes(b"no")
        with pytest.raises(BadRecords, match=name):
            read_pictures(tmp_path / name, 4, 4)
    np.save(tmp_path / "x.npy", IMAGES)
    with pytest.raises(BadRecords, match=r"a \.npz file may hold images and labels"):
        read_pictures(tmp_path / "x.npy", 4, 4, classes=2)


@pytest.mark.parametrize(
    "change",
    [
        {"height": 0}, {"width": 5000}, {"height": 1.0}, {"width": True}, {"channels": 2}, {"fit": "tile"}, {"classes": -1},
        {"classes": 1}, {"classes": ("a",)}, {"classes": ("a", "a")}, {"classes": (1, 2)}, {"classes": "ab"}, {"high": 0},
        {"high": float("inf")}, {"high": float("nan")}, {"high": "x"},
    ],
    ids=repr,
)  # fmt: skip
def test_nonsense_is_no_form(change):
    with pytest.raises(ValueError, match=r"^[^\n]{10,300}$"):
        PictureForm(**{"height": 4, "width": 4, **change})
