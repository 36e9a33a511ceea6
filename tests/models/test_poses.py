"""Poses of pictures: found by hand, taken away and put back, functions of each picture alone."""

import numpy as np
import pytest
import torch

from lightning_dpgen.models.poses import apply_poses, find_poses, longest_pose, remove_poses


def strokes(n, channels=1, seed=0):
    """Return slanted strokes (n, 19, 16, channels) on an empty ground, away from the edges, as multiples of 2^-12."""
    random, pictures = np.random.default_rng(seed), np.zeros((n, 19, 16, channels))
    for picture in pictures:
        y = np.arange(7, 12)
        x = 7.5 + random.uniform(-0.8, 0.8) * (y - 9) + random.integers(-2, 3)
        picture[y + random.integers(-3, 4), x.round().astype(int)] = random.integers(1, 4097, (5, channels)) / 4096
    return torch.from_numpy(pictures)


def by_hand(picture):
    """Find the pose of a picture (height, width) by loops."""
    mass, (rows, columns) = picture.sum(), np.indices(picture.shape)
    y, x = (picture * rows).sum() / mass, (picture * columns).sum() / mass
    slant = (picture * (rows - y) * (columns - x)).sum() / max((picture * (rows - y) ** 2).sum() / mass, 0.5) / mass
    middle = [(length - 1) / 2 for length in picture.shape]
    return [np.clip(slant, -1, 1), *(np.round(at - half) for at, half in zip((y, x), middle, strict=True))]


@pytest.mark.parametrize("channels", [1, 3])
def test_poses_are_those_found_by_hand(channels):
    pictures = strokes(50, channels)
    expected = [by_hand(picture) for picture in pictures.sum(dim=3).numpy()]
    found = find_poses(pictures)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    assert len(found[:, 1].unique()) > 3 and len(found[:, 2].unique()) > 3 and found[:, 0].std() > 0.3


def test_a_picture_without_its_pose_has_none_and_gets_it_back():
    pictures = strokes(50)
    poses = find_poses(pictures)
    without = remove_poses(pictures, poses)
    assert find_poses(without)[:, 1:].abs().max() <= 1.0 and find_poses(without).abs().mean() < 0.1 * poses.abs().mean()
    again = apply_poses(without, poses)
    # Interpolation blurs within rows and moves nothing: rows keep their ink and its centre.
    columns = torch.arange(16.0, dtype=torch.float64)[:, None]
    for moment in (torch.ones_like(columns), columns):
        torch.testing.assert_close((again * moment).sum(dim=2), (pictures * moment).sum(dim=2), atol=1e-9, rtol=0.0)
    assert (again - pictures).abs().max() > 0.1
    straight = poses * torch.tensor([0.0, 1.0, 1.0])
    assert torch.equal(apply_poses(remove_poses(pictures, straight), straight), pictures)


def test_poses_and_pictures_are_of_each_alone_to_the_last_bit():
    random = np.random.default_rng(1)
    noise = torch.from_numpy(random.integers(0, 4097, (40, 19, 16, 1)) / 4096)
    pictures = torch.cat([strokes(40), noise, torch.zeros(1, 19, 16, 1), torch.ones(1, 19, 16, 1)])
    poses = find_poses(pictures)
    without = remove_poses(pictures, poses)
    for i in range(len(pictures)):
        pose = find_poses(pictures[i : i + 1])
        assert torch.equal(pose[0], poses[i]) and torch.equal(remove_poses(pictures[i : i + 1], pose)[0], without[i])


def test_extreme_pictures_and_poses_stay_within_range():
    corners = torch.zeros(4, 9, 12, 1, dtype=torch.float64)
    for picture, (y, x) in zip(corners, [(0, 0), (0, 11), (8, 0), (8, 11)], strict=True):
        picture[y, x] = 1.0
    most = torch.tensor(longest_pose(9, 12), dtype=torch.float64)
    assert (find_poses(corners)[:, 1:].abs() == most[1:]).all()
    assert torch.equal(find_poses(torch.zeros(1, 9, 12, 1)), torch.zeros(1, 3))
    far = torch.tensor([[1e9, -1e9, 1e9]] * 4, dtype=torch.float64)
    for moved in (remove_poses(corners, far), apply_poses(corners, far)):
        assert moved.shape == corners.shape and moved.min() >= 0.0 and moved.max() <= 1.0
    assert torch.equal(apply_poses(corners, far), apply_poses(corners, far.clamp(-most, most)))
    # A picture of one pixel has nowhere to go.
    assert torch.equal(find_poses(torch.ones(1, 1, 1, 1)), torch.zeros(1, 3))


def test_ink_is_what_differs_from_the_ground():
    """Ink on grey, and dark ink on white, have the poses of the same ink on black, and nothing else beyond the edges."""
    pictures = strokes(50)
    poses = find_poses(pictures)
    without = remove_poses(pictures, poses)
    for changed in (lambda x: 0.25 + 0.5 * x, lambda x: 1.0 - x):
        assert torch.equal(find_poses(changed(pictures)), poses)
        torch.testing.assert_close(remove_poses(changed(pictures), poses), changed(without), atol=1e-12, rtol=0.0)
        torch.testing.assert_close(apply_poses(changed(without), poses), changed(apply_poses(without, poses)))


def test_sums_of_ink_are_exact_in_tall_pictures_too():
    pictures = torch.rand(3, 4096, 64, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone = [find_poses(picture[None]) for picture in pictures]
    assert torch.equal(find_poses(pictures), torch.cat(alone))
