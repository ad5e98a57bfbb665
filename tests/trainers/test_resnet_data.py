import numpy as np
import pytest
import torch
from PIL import Image

from trainers import DataError
from trainers.workloads import load_workload
from trainers.workloads.resnet.data import load_digits_images, stratified_split
from trainers.workloads.resnet.image_folder import ImagesOnDisk


def some(count, epoch=0):
    return torch.arange(count), torch.full((count,), epoch)


def write_images(folder, size, classes=("cat", "dog"), per_class=3, parts=("train", "val")):
    generator = np.random.default_rng(0)
    for part in parts:
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for index in range(per_class):
                pixels = generator.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{index}.png")
    return str(folder)


def test_digits_are_split_by_class_without_overlap():
    data = load_digits_images(augment=False)
    assert (data.train_samples, data.evaluation_samples) == (1437, 360)
    _, train = data.training_batch(*some(1437), seed=0)
    _, test = data.evaluation_batch(torch.arange(360))
    shares = train.bincount() / (train.bincount() + test.bincount())
    assert (shares - 0.8).abs().max() < 0.006


def test_the_split_is_exact_disjoint_and_always_the_same():
    classes = np.repeat([0, 1, 2], [11, 7, 5])
    training, evaluation = stratified_split(classes, 0.8)
    assert len(training) == 18
    assert sorted([*training.tolist(), *evaluation.tolist()]) == list(range(23))
    assert torch.equal(training, stratified_split(classes, 0.8)[0])


def test_training_images_have_mean_zero_and_variance_one():
    data = load_digits_images(augment=False)
    images, _ = data.prepare(data.training_batch(*some(1437), seed=0))
    assert images.mean().abs() < 1e-5 and (images.std() - 1).abs() < 1e-4


def test_augmentation_shifts_each_image_by_its_own_seed_and_epoch():
    plain, shifting = load_digits_images(augment=False), load_digits_images(augment=True)
    originals, _ = plain.training_batch(*some(200), seed=0)
    shifted, _ = shifting.training_batch(*some(200), seed=0)
    background = originals.min()
    padded = torch.nn.functional.pad(originals, (1, 1, 1, 1), value=background.item())
    windows = [
        padded[:, :, down : down + 8, right : right + 8] for down in range(3) for right in range(3)
    ]
    same = torch.stack([(window == shifted).flatten(1).all(1) for window in windows])
    assert same.any(0).all(), "every image is one of its nine shifts"
    assert same.any(1).all(), "and every shift occurs"
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    again, _ = shifting.training_batch(order, torch.zeros(200, dtype=torch.int64), seed=0)
    assert torch.equal(again, shifted[order])
    assert not torch.equal(shifting.training_batch(*some(200, epoch=1), seed=0)[0], shifted)
    assert not torch.equal(shifting.training_batch(*some(200), seed=1)[0], shifted)


@pytest.mark.parametrize(("size", "image_size"), [((16, 16), None), ((40, 24), 16)])
def test_a_folder_of_small_images_is_read_into_memory(tmp_path, size, image_size):
    options = {"image_size": image_size} if image_size else {}
    workload = load_workload(
        "resnet", {"source": "image_folder", "path": write_images(tmp_path, size), **options}
    )
    images, classes = workload.training_batch(*some(6), seed=0)
    assert images.shape == (6, 3, 16, 16) and classes.tolist() == [0, 0, 0, 1, 1, 1]
    assert (workload.train_samples, workload.evaluation_samples, workload.model_name) == (
        6,
        6,
        "resnet8",
    )


def test_pixels_and_classes_come_from_the_right_files(tmp_path):
    path = write_images(tmp_path, (8, 8), parts=("train", "test"))
    workload = load_workload("resnet", {"source": "image_folder", "path": path, "augment": False})
    images, _ = workload.prepare(workload.training_batch(*some(6), seed=0))
    stored = np.stack(
        [
            np.asarray(Image.open(tmp_path / "train" / name / f"{index}.png"))
            for name in ("cat", "dog")
            for index in range(3)
        ]
    ).astype(float)
    expected = (stored - stored.mean((0, 1, 2))) / stored.std((0, 1, 2), ddof=1)
    np.testing.assert_allclose(images.permute(0, 2, 3, 1).numpy(), expected, atol=1e-4)


def test_a_folder_of_large_images_is_read_as_needed_and_repeatably(tmp_path):
    path = write_images(tmp_path, (120, 90))
    workload = load_workload("resnet", {"source": "image_folder", "path": path, "image_size": 72})
    assert isinstance(workload.images, ImagesOnDisk) and workload.model_name == "resnet50"
    images, classes = workload.training_batch(*some(6), seed=0)
    assert images.shape == (6, 3, 72, 72) and classes.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(workload.training_batch(*some(6), seed=0)[0], images)
    assert torch.equal(
        workload.training_batch(torch.tensor([4]), torch.tensor([0]), seed=0)[0][0], images[4]
    )
    assert not torch.equal(workload.training_batch(*some(6, epoch=1), seed=0)[0], images)
    assert workload.evaluation_batch(torch.arange(2))[0].shape == (2, 3, 72, 72)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "digit"}, "no data source 'digit'; did you mean 'digits'"),
        ({"sorce": "digits"}, "no data option 'sorce'; did you mean 'source'"),
        ({"path": "x"}, "'digits' has no option 'path'"),
        ({"augment": "yes"}, "augment must be true or false"),
        ({"model": "resnet9"}, "no model 'resnet9'"),
        ({"width": 0}, "width must be a whole number"),
        ({"decoder": "pillow"}, "'digits' has no option 'decoder'"),
        (
            {"source": "image_folder", "decoder": "pilow"},
            "no decoder 'pilow'; did you mean 'pillow'",
        ),
        (
            {"source": "image_folder", "decoding_threads": 0},
            "decoding_threads must be a whole number",
        ),
        ({"source": "image_folder"}, "needs path"),
        ({"source": "image_folder", "path": "/nowhere"}, "the data folder /nowhere does not exist"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(DataError, match=message):
        load_workload("resnet", options)


def test_bad_folders_are_named(tmp_path):
    options = {"source": "image_folder", "path": str(tmp_path)}
    with pytest.raises(DataError, match=r"train does not exist.*train/CLASS"):
        load_workload("resnet", options)
    write_images(tmp_path, (8, 8), classes=("cat",), parts=("train",))
    with pytest.raises(DataError, match=r"at least two classes.*has 1 class folders and 3 images"):
        load_workload("resnet", options)
    write_images(tmp_path, (8, 8), classes=("dog",), parts=("train",))
    with pytest.raises(DataError, match="val does not exist"):
        load_workload("resnet", options)
    write_images(tmp_path, (8, 8), classes=("cow", "dog"), parts=("val",))
    with pytest.raises(DataError, match=r"the classes cow are in .*val but not in"):
        load_workload("resnet", options)
    (tmp_path / "train" / "cat" / "0.png").write_bytes(b"no image")
    (tmp_path / "val" / "cow").rename(tmp_path / "val" / "cat")
    with pytest.raises(DataError, match=r"cannot read the image .*0\.png"):
        load_workload("resnet", {**options, "image_size": 8})
