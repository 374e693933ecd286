"""Fitted estimators to model folders and back."""

from __future__ import annotations

import csv
import dataclasses
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from concrete_kmeans import __version__, storage
from concrete_kmeans.data import Scaling
from concrete_kmeans.model import Model
from concrete_kmeans.modes import plain
from concrete_kmeans.networks import Autoencoder, Principal, build_autoencoder
from concrete_kmeans.storage import CONFIG, TENSORS, Stored
from concrete_kmeans.training import Event
from concrete_kmeans.validation import check_types, shown

if TYPE_CHECKING:
    from concrete_kmeans.estimators.deep import DeepClusterer, EncoderSpec
    from concrete_kmeans.estimators.shallow import ConcreteKMeans

__all__ = ["SaveMixin", "load", "save"]

logger = logging.getLogger(__name__)

#: What the names of a network's tensors begin with.
NETWORK = "network."
#: Encoders and decoders that a description names; any other name is that of a user's class.
BUILT_IN = {"encoder": ("mlp", "residual", "conv"), "decoder": ("auto",)}


class SaveMixin:
    """``save``, for fitted estimators."""

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted estimator to a folder, for :func:`concrete_kmeans.load`.

        Parameters
        ----------
        path : str or Path
        overwrite : bool, default=False
            Replace a model folder that is there; any other folder is never replaced.
        """
        save(cast("DeepClusterer | ConcreteKMeans", self), path, overwrite=overwrite)


@plain()
def save(
    estimator: DeepClusterer | ConcreteKMeans,
    path: str | Path,
    *,
    overwrite: bool = False,
    ids: Sequence[object] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write a fitted estimator to a model folder; see :mod:`concrete_kmeans.storage`.

    Parameters
    ----------
    estimator : fitted estimator of this package
    path : str or Path
        The folder. Written under a temporary name and renamed: there is all of it or nothing.
    overwrite : bool, default=False
        Replace a model folder that is there already; any other folder is never replaced.
    ids : sequence, optional
        Names of the training rows in ``labels.csv``; their numbers by default.
    notes : mapping, optional
        More keys of ``config.json``, ready for JSON: how the rows were prepared, say.
    """
    name = type(estimator).__name__
    if _classes().get(name) is not type(estimator):
        raise TypeError(f"only the estimators of concrete_kmeans can be saved, got {name}")
    check_is_fitted(estimator)
    tensors: dict[str, Tensor] = {}
    parameters, left_out = _parameters(estimator, tensors)
    config = {
        "package_version": __version__,
        "class": name,
        "parameters": parameters,
        "parameters_left_out": left_out,
        "torch": isinstance(estimator.labels_, Tensor),
        "n_features": estimator.n_features_in_,
        "n_clusters": len(estimator.cluster_centers_),
        "feature_names": _names(estimator),
        **_fitted_numbers(estimator),
    }
    history: list[Any] = []
    if hasattr(estimator, "model_"):
        config |= _deep_state(cast("DeepClusterer", estimator), tensors)
        events = [dataclasses.asdict(event) for event in estimator.history_]
        history = storage.encode(events, {}, "history")
    else:
        config |= _shallow_state(cast("ConcreteKMeans", estimator), tensors)
    tensors["labels"] = torch.as_tensor(estimator.labels_)
    stored = Stored({**config, **(notes or {})}, tensors, history)
    labels = _labels_csv(tensors["labels"].tolist(), ids)
    storage.write(Path(path), stored, labels, overwrite=overwrite)


@plain()
def load(
    path: str | Path, *, encoder: EncoderSpec | None = None, decoder: EncoderSpec | None = None
) -> Any:
    """Read a fitted estimator from a model folder.

    Parameters
    ----------
    path : str or Path
        A folder that ``save`` of an estimator, or ``ckm fit``, has written.
    encoder, decoder : nn.Module or callable, optional
        The user's own, where the estimator was fitted with one: its tensors are in the folder, its
        code is not. The weights it brings are not used.

    Returns
    -------
    estimator
        It computes what the saved one did, to the last bit. Tensors come back on the CPU.
        Parameters that are no plain values (callbacks, ``pretrained``, functions) have their
        defaults; a warning in the log names them.

    Examples
    --------
    >>> import tempfile
    >>> import concrete_kmeans as ckm
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [9.0, 2.0], [9.0, 4.0]])
    >>> fitted = ckm.ConcreteKMeans(2, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fitted.save(f"{folder}/model")
    ...     again = ckm.load(f"{folder}/model")
    >>> bool((again.predict(X) == fitted.labels_).all())
    True
    """
    if not isinstance(path, str | Path):
        raise TypeError(f"path must be that of a model folder, got {shown(path)}")
    folder = Path(path)
    stored = storage.read(folder)
    modules = {"encoder": encoder, "decoder": decoder}
    for name, module in modules.items():
        if module is not None and not callable(module):
            raise TypeError(
                f"{name} must be an nn.Module, a function that returns one, or None, got {module!r}"
            )
    try:
        return _restored(stored, modules)
    except _MisfitError as error:
        raise ValueError(f"{folder / error.file}: {error}") from error
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{folder / CONFIG} is damaged, or not of {folder / TENSORS} "
            f"({type(error).__name__}: {error})"
        ) from error


class _MisfitError(Exception):
    """What is in a file does not go with the rest."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(why)
        self.file = file


def _restored(stored: Stored, modules: Mapping[str, Any]) -> Any:
    config, tensors = stored.config, stored.tensors
    cls = _classes().get(config["class"])
    if cls is None:
        raise _MisfitError(CONFIG, f"unknown class {config['class']!r}")
    parameters = storage.decode(config["parameters"], tensors)
    if unknown := sorted({*parameters} - {*cls().get_params(deep=False)}):
        raise _MisfitError(
            CONFIG,
            f"{cls.__name__} has no parameter {unknown[0]!r} in this version; the folder was "
            f"written by version {config.get('package_version')}",
        )
    for name in config["parameters_left_out"]:
        if modules.get(name) is not None:
            parameters[name] = modules[name]
        else:
            logger.warning("%s was not saved and has its default: set it before another fit", name)
    estimator = cls(**parameters)
    estimator.n_features_in_ = config["n_features"]
    if config["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(config["feature_names"], dtype=object)
    estimator.labels_ = _given(tensors["labels"], config)
    estimator.inertia_ = storage.decode(config["inertia"], {})
    estimator.n_iter_ = config["n_iter"]
    if "network" in config:
        _set_deep(estimator, stored, modules)
    else:
        _set_shallow(estimator, stored)
    _check_fitted(estimator, tensors["labels"])
    return estimator


def _check_fitted(estimator: Any, labels: Tensor) -> None:
    """What no file says in another place, too."""
    K, names = len(estimator.cluster_centers_), getattr(estimator, "feature_names_in_", None)
    whole = labels.ndim == 1 and labels.dtype in (torch.int32, torch.int64) and len(labels) > 0
    if not whole or int(labels.min()) < 0 or int(labels.max()) >= K:
        raise _MisfitError(TENSORS, f"labels must be a row of whole numbers from 0 to {K - 1}")
    if not bool(torch.as_tensor(estimator.cluster_centers_).isfinite().all()):
        raise _MisfitError(TENSORS, "centers hold NaN or infinity")
    if names is not None and (
        len(names) != estimator.n_features_in_ or not all(isinstance(name, str) for name in names)
    ):
        raise _MisfitError(CONFIG, f"feature_names must be {estimator.n_features_in_} texts")
    for name, kind in (("inertia_", int | float), ("n_iter_", int)):
        value = getattr(estimator, name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _MisfitError(CONFIG, f"{name[:-1]} must be a number, got {shown(value)}")


def _n_clusters(estimator: Any, config: Mapping[str, Any]) -> Any:
    """Of the fit: the parameter may have been set for another, and is all that old folders have."""
    return config.get("n_clusters", estimator.n_clusters)


def _classes() -> dict[str, Any]:
    from concrete_kmeans.estimators import methods
    from concrete_kmeans.estimators.shallow import ConcreteKMeans

    named = {name: getattr(methods, name) for name in methods.__all__}
    return {"ConcreteKMeans": ConcreteKMeans, **named}


def _parameters(
    estimator: Any, tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parameters as JSON; and of those that have no such form, what they are."""
    plain, left_out = {}, {}
    for name, value in estimator.get_params(deep=False).items():
        try:
            plain[name] = storage.encode(value, tensors, f"parameters.{name}")
        except TypeError:
            left_out[name] = type(value).__name__
    return plain, left_out


def _names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _fitted_numbers(estimator: Any) -> dict[str, Any]:
    return {
        "inertia": storage.encode(estimator.inertia_, {}, "inertia"),
        "n_iter": int(estimator.n_iter_),
    }


def _given(tensor: Tensor, config: Mapping[str, Any]) -> Any:
    """A result in the form of what was fitted, with memory of its own."""
    return tensor.clone() if config["torch"] else tensor.numpy().copy()


def _labels_csv(labels: Sequence[int], ids: Sequence[object] | None) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row" if ids is None else "id", "cluster"])
    table.writerows(zip(range(len(labels)) if ids is None else ids, labels, strict=True))
    return text.getvalue()


# --------------------------------------------------------------------------------------------------
# deep estimators


def _deep_state(estimator: DeepClusterer, tensors: dict[str, Tensor]) -> dict[str, Any]:
    model = estimator.model_
    tensors |= {NETWORK + name: value for name, value in model.network.state_dict().items()}
    tensors |= {
        "centers": model.centers,
        "sigma2": model.sigma2,
        "scaling.shift": model.scaling.shift,
        "scaling.factor": model.scaling.factor,
        "restarts.labels": torch.stack([torch.as_tensor(r.labels) for r in estimator.restarts_]),
    }
    restarts = [
        {name: value for name, value in r._asdict().items() if not hasattr(value, "shape")}
        for r in estimator.restarts_
    ]
    return {
        "feature_shape": list(estimator.feature_shape_),
        "network": model.network.description(),
        "scaling": model.scaling.kind,
        "kernel": model.kernel,
        "gains": storage.encode(model.gains, {}, "gains"),
        "best_restart": estimator.best_restart_,
        "restarts": storage.encode(restarts, {}, "restarts"),
    }


def _set_deep(estimator: Any, stored: Stored, modules: Mapping[str, Any]) -> None:
    from concrete_kmeans.estimators.deep import DeepRestart

    config, tensors = stored.config, stored.tensors
    centers, best = tensors["centers"], config["best_restart"]
    scaling = Scaling(config["scaling"], tensors["scaling.shift"], tensors["scaling.factor"])
    network = _network(config["network"], tensors, modules)
    estimator.feature_shape_ = tuple(config["feature_shape"])
    estimator.model_ = Model(
        network,
        centers,
        scaling,
        tensors["sigma2"],
        storage.decode(config["gains"], {}),
        config["kernel"],
        low=estimator.precision == "bfloat16",
    )
    _check_shapes(estimator, config, tensors)
    estimator.best_restart_ = best
    fitted = estimator.model_.select(best)
    vars(estimator)["_fitted"] = fitted
    used = {**fitted.network.state_dict(), "scaling": scaling.shift, "factor": scaling.factor}
    for name, tensor in used.items():
        if not bool(tensor.isfinite().all()):
            raise _MisfitError(TENSORS, f"{name} holds NaN or infinity")
    estimator.restarts_ = [
        DeepRestart(
            **numbers,
            labels=_given(tensors["restarts.labels"][r], config),
            cluster_centers=_given(centers[r], config),
        )
        for r, numbers in enumerate(_numbers_of(DeepRestart, config))
    ]
    estimator.cluster_centers_ = _given(fitted.centers[0], config)
    estimator.history_ = [_event(event) for event in storage.decode(stored.history, {})]


def _numbers_of(cls: type, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of each restart."""
    found: list[dict[str, Any]] = storage.decode(config["restarts"], {})
    for numbers in found:
        check_types(cls, numbers)
    return found


def _event(values: Any) -> Event:
    check_types(Event, values)
    return Event(**values)


def _check_shapes(estimator: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    network, R = estimator.model_.network, len(config["restarts"])
    D, n = network.n_features, len(tensors["labels"])
    factor = tensors["scaling.factor"]
    expected = {
        "centers": (R, _n_clusters(estimator, config), network.code_size),
        "sigma2": (R,),
        "scaling.shift": (D,),
        "scaling.factor": (D,) if factor.ndim else (),
        "restarts.labels": (R, n),
    }
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise _MisfitError(
                TENSORS, f"{name} must have the shape {shape}, got {tuple(tensors[name].shape)}"
            )
    if estimator.n_features_in_ != D or network.feature_shape != estimator.feature_shape_:
        raise _MisfitError(
            CONFIG, f"n_features={estimator.n_features_in_}, but the network takes {D}"
        )
    if not 0 <= config["best_restart"] < R or len(estimator.model_.gains) != R:
        raise _MisfitError(CONFIG, f"best_restart and gains must be those of {R} restarts")


def _network(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, Any]
) -> Autoencoder:
    said = {name: _part(name, description[name], modules[name]) for name in modules}
    D, d = int(np.prod(description["feature_shape"])), description["code_size"]
    centers = tensors["centers"]
    _check_widths(description, D, tensors)
    try:
        # one restart of any weights, as often as there are restarts: theirs follow
        one = build_autoencoder(
            **{**description, **said},
            seeds=[0],
            principal=Principal(torch.zeros(D), torch.zeros(D, d)),
            dtype=centers.dtype,
        )
    except ValueError as error:
        raise _MisfitError(CONFIG, f"the network cannot be built: {error}") from error
    network = one.select([0] * len(centers)).eval()
    own = {n.removeprefix(NETWORK): t for n, t in tensors.items() if n.startswith(NETWORK)}
    for name, tensor in network.state_dict().items():
        if name in own and modules.get(name.split(".")[0]) is None:
            own[name] = _aligned(own[name], tensor)
    found, wanted = _shapes(own), _shapes(network.state_dict())
    if found != wanted:
        name = min(name for name in {**found, **wanted} if found.get(name) != wanted.get(name))
        user = [n for n, module in modules.items() if module is not None]
        raise _MisfitError(
            TENSORS,
            f"tensor {name} is {found.get(name, 'not there')}, but "
            + (f"the {' and '.join(user)} given" if user else "the network")
            + f" has {wanted.get(name, 'no such one')}",
        )
    network.load_state_dict(own)
    return network


def _aligned(tensor: Tensor, wanted: Tensor) -> Tensor:
    """Weights of a folder from before hidden layers were filled up to multiples of 8 units."""
    if tensor.ndim != wanted.ndim:
        return tensor
    missing = [w - n for n, w in zip(tensor.shape, wanted.shape, strict=True)]
    if not any(missing) or not all(0 <= m < 8 for m in missing):
        return tensor
    ends = [side for m in reversed(missing) for side in (0, m)]
    return nn.functional.pad(tensor, ends)


def _check_widths(description: Mapping[str, Any], D: int, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a network that is larger than the tensors there are, before memory is asked for it."""
    sizes = [D, description["code_size"]]
    for part in ("encoder", "decoder"):
        sizes += description[part] if isinstance(description[part], list) else []
    largest = max(axis for tensor in tensors.values() for axis in (*tensor.shape, 0))
    if max(sizes) > largest or min(sizes) < 1:
        raise _MisfitError(CONFIG, f"a network of {shown(sizes)} units is not that of {TENSORS}")


def _part(name: str, said: Any, module: nn.Module | Any | None) -> Any:
    """The encoder or decoder to build: as described, or the user's own."""
    own = isinstance(said, str) and said not in BUILT_IN[name]
    if own and module is None:
        raise _MisfitError(
            CONFIG, f"fitted with your {name} {said}: load(path, {name}=...) needs it"
        )
    if module is not None and not own:
        raise _MisfitError(CONFIG, f"{name} must be None: fitted with {said!r}, not with your own")
    return module if own else said


def _shapes(state: Mapping[str, Tensor]) -> dict[str, str]:
    return {n: f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for n, t in state.items()}


# --------------------------------------------------------------------------------------------------
# the shallow estimator


def _shallow_state(estimator: ConcreteKMeans, tensors: dict[str, Tensor]) -> dict[str, Any]:
    tensors["centers"] = torch.as_tensor(estimator.cluster_centers_)
    state: dict[str, Any] = {}
    if hasattr(estimator, "restarts_"):  # not after partial_fit alone
        centers = [torch.as_tensor(r.cluster_centers) for r in estimator.restarts_]
        tensors["restarts.centers"] = torch.stack(centers)
        state["restarts"] = storage.encode(
            [
                {"seed": r.seed, "inertia": r.inertia, "n_iter": r.n_iter}
                for r in estimator.restarts_
            ],
            {},
            "restarts",
        )
    online = vars(estimator)["_online"]
    state["online"] = online and storage.encode(online._asdict(), tensors, "online")
    return state


def _set_shallow(estimator: Any, stored: Stored) -> None:
    from concrete_kmeans.estimators.shallow import Online, Restart

    config, tensors = stored.config, stored.tensors
    shape = (_n_clusters(estimator, config), estimator.n_features_in_)
    if tuple(tensors["centers"].shape) != shape:
        raise _MisfitError(
            TENSORS, f"centers must have the shape {shape}, got {tuple(tensors['centers'].shape)}"
        )
    estimator.cluster_centers_ = _given(tensors["centers"], config)
    online = storage.decode(config["online"], tensors)
    vars(estimator)["_online"] = online and Online(**online)
    if "restarts" in config:
        estimator.restarts_ = [
            Restart(**numbers, cluster_centers=_given(tensors["restarts.centers"][r], config))
            for r, numbers in enumerate(_numbers_of(Restart, config))
        ]
