"""Folders for new runs: claimed by one process, or made beside their place and put there when they are whole."""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml

from generalist.core.errors import RunError, UserError
from generalist.core.files import fingerprint, process_lives, remove_leftovers, write_atomically
from generalist.distributed import ranks
from generalist.distributed.launch import launched_processes
from generalist.recipes.differences import RUNTIME_FIELDS, decisive, first_difference, settings_between
from generalist.recipes.schema import Recipe
from generalist.runs.folder import RECIPE_DIGEST, Run
from generalist.runs.paths import RunPaths
from generalist.training.guards import InUse, sole_owner


class ClaimedFolder:
    """A folder that only this run may write to, before it is known whether there is anything to write."""

    def __init__(self, folder: Path, recipe: Recipe, *, resume: bool) -> None:
        self._paths, self._recipe, self._resume = RunPaths(folder), recipe, resume

    @property
    def finished_run(self) -> Run | None:
        """The run that is here already, if it is finished and was asked to go on. The same on all ranks."""
        found = ranks.run_on_main(lambda: self._resume and self._paths.exists and Run(self._paths.folder).finished)
        return Run(self._paths.folder) if ranks.all_gather(found)[0] else None

    def begin(self) -> Run:
        """Write the recipe: from now on the folder holds a run."""
        ranks.run_on_main(lambda: _write_recipe(self._paths, self._recipe))
        return Run(self._paths.folder)


@contextmanager
def claimed_folder(folder: Path, recipe: Recipe, *, resume: bool) -> Iterator[ClaimedFolder]:
    """Inside, the folder belongs to this run: nobody else trains in it, and it holds nothing but this recipe's run.

    All ranks call this together; the main rank does what is to be done. A folder that is made here and stays empty,
    because something went wrong before the run began, is removed again.
    """
    with ExitStack() as held:
        ranks.run_on_main(lambda: held.enter_context(_claimed(folder, recipe, resume=resume)))
        yield ClaimedFolder(folder, recipe, resume=resume)


@contextmanager
def _claimed(folder: Path, recipe: Recipe, *, resume: bool) -> Iterator[None]:
    _check_folder(folder, recipe, resume=resume)  # before anything is made
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    paths = RunPaths(folder)
    try:
        with _told_of_ranks(), sole_owner(paths.lock_file):
            _check_folder(folder, recipe, resume=resume)  # another process may have been faster
            remove_leftovers(folder)
            yield
    finally:
        if made and not paths.exists and {path.name for path in folder.glob("*")} <= {paths.lock_file.name}:
            shutil.rmtree(folder, ignore_errors=True)
            for place in made[1:]:
                with suppress(OSError):  # it holds something else by now, or could not be made
                    place.rmdir()


@contextmanager
def _told_of_ranks() -> Iterator[None]:
    """Processes that torchrun started and that do not know of each other get into each other's way."""
    try:
        yield
    except InUse as error:
        if launched_processes() == ranks.world():
            raise
        raise InUse(
            f"{error}; torchrun started {launched_processes()} processes, which share the work within"
            " `with generalist.joined_ranks():`"
        ) from None


def check_free(folder: Path) -> None:
    """Refuse a folder for a new run that is a file, or holds anything."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder")


@contextmanager
def new_run(folder: Path, recipe: Recipe) -> Iterator[Run]:
    """A run that is made outside training. Inside, it lies in a temporary folder beside `folder`.

    At the end that becomes `folder`; if anything goes wrong before, nothing stays. All ranks call this together.
    """
    main_process = ranks.all_gather(os.getpid())[0]
    paths = RunPaths(folder.with_name(f".{folder.name}.{main_process}.partial"))
    made = [place for place in folder.absolute().parents if not place.exists()]
    try:
        ranks.run_on_main(lambda: check_free(folder))
        ranks.run_on_main(lambda: _remove_partial(folder))
        ranks.run_on_main(lambda: _write_recipe(paths, recipe))
        yield Run(paths.folder)
        ranks.run_on_main(lambda: _put_in_place(paths.folder, folder))
    except BaseException:
        if ranks.is_main():
            shutil.rmtree(paths.folder, ignore_errors=True)
            for place in made:
                with suppress(OSError):  # it holds something else by now
                    place.rmdir()
        raise


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that is no run. Inside, it lies in a temporary folder beside `folder`; at the end it becomes that."""
    check_free(folder)
    _remove_partial(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    made = [place for place in folder.absolute().parents if not place.exists()]
    try:
        yield temporary
        _put_in_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for place in made:
            with suppress(OSError):  # it holds something else by now
                place.rmdir()
        raise


def _remove_partial(folder: Path) -> None:
    """What killed processes left of the same folder; a killed process cannot clean up."""
    for path in folder.parent.glob(f".{folder.name}.*.partial"):
        owner = path.name.removesuffix(".partial").rpartition(".")[2]
        if owner.isdecimal() and not process_lives(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _put_in_place(temporary: Path, folder: Path) -> None:
    try:
        os.replace(temporary, folder)  # an empty folder may be there
    except OSError as error:
        raise RunError(f"could not write {folder}: {error.strerror or error}") from None


def _check_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """A folder that holds something else is refused before anything is loaded or written."""
    paths = RunPaths(folder)
    if not paths.exists:
        known = (paths.lock_file, paths.given)
        others = [path for path in folder.glob("*") if path not in known] if folder.exists() else []
        if others:
            raise UserError(f"{folder} is not empty and not a run folder; give another folder", command="--out FOLDER")
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; give a folder", command="--out FOLDER")
        return
    theirs = Run(folder).recipe
    difference = first_difference(recipe, theirs)
    if difference:
        changes = [part for change in settings_between(recipe, theirs) for part in ("--set", change)]
        again = f"repeat the --set of the first start: {shlex.join(changes)}, or " if resume and changes else ""
        raise UserError(
            f"{folder} holds a run of another recipe: {difference}; give the same recipe or another folder",
            command=f"{again}give another --out",
        )
    if not resume:
        raise UserError(
            f"{folder} holds a run of this recipe already; resume it or give another folder",
            command="--resume to go on, or another --out",
        )


def _write_recipe(paths: RunPaths, recipe: Recipe) -> None:
    """With the digest of the fields that decide results. Of a run that goes on, only the others are written anew."""
    raw = yaml.safe_load(recipe.to_yaml())
    if paths.exists:
        raw = {**raw, **decisive(Run(paths.folder).written_recipe)}
        for section, field in (path for path in RUNTIME_FIELDS if len(path) == 2):
            raw[section][field] = recipe.plain()[section][field]
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    content = f"{RECIPE_DIGEST}{fingerprint(decisive(raw))}\n{text}"
    write_atomically(paths.recipe_file, content.encode())
