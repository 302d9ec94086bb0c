import multiprocessing
import shutil
import subprocess
import threading
import time

import pytest
from dask.config import set as set_dask_config
from distributed import LocalCluster
from joblib.externals.loky import get_reusable_executor

from reproduction.study import read_study, run_study
from reproduction.study.results import load_saved_results, save_model_results
from tests.campaign.kills import is_running

# Values that do not depend on the speed of the machine.
REPRODUCIBLE = (
    "labels",
    "run",
    "accuracy",
    "accuracy_by_shift",
    "steps",
    "parameters",
    "backend",
    "equivariance_error",
)
NAMES = {
    "softmax--none--seed-0",
    "softmax--none--seed-3",
    "squared-relu--absolute--seed-0",
    "squared-relu--absolute--seed-3",
    "squared-relu--none--seed-0",
    "squared-relu--none--seed-3",
}
# Some of the models.
HALF = {"kernel": ["squared relu"]}
THIRD = {"kernel": ["squared relu"], "position": ["none"]}
FORK = multiprocessing.get_context("fork")


def reproducible(folder):
    return {
        name: [content[key] for key in REPRODUCIBLE]
        for name, content in load_saved_results(folder / "cells.jsonl.gz").items()
    }


def test_every_result_is_saved_and_checkpoints_are_removed(finished_folder):
    assert load_saved_results(finished_folder / "cells.jsonl.gz").keys() == NAMES
    assert not list((finished_folder / "training").rglob("*.ckpt"))


def test_a_finished_study_is_not_trained_again(finished_folder, tiny_study):
    before = (finished_folder / "cells.jsonl.gz").stat().st_mtime_ns
    run_study(read_study(tiny_study), finished_folder)
    assert (finished_folder / "cells.jsonl.gz").stat().st_mtime_ns == before


def part(finished_folder, only):
    """Return the reproducible values of some of the models."""
    beginning = "squared-relu--none" if "position" in only else "squared-relu"
    return {
        name: numbers
        for name, numbers in reproducible(finished_folder).items()
        if name.startswith(beginning)
    }


def test_a_killed_study_resumes_with_the_same_numbers(finished_folder, tiny_study, tmp_path):
    out, study = tmp_path / "out", read_study(tiny_study)
    get_reusable_executor().shutdown()  # a fork has nothing of it that works
    options = {"processes": 2, "command": "teka study", "only": HALF}
    process = FORK.Process(target=run_study, args=(study, out), kwargs=options)
    process.start()
    limit = time.monotonic() + 120
    while not (out / "cells.jsonl.gz").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    ).stdout
    children = [int(line) for line in listed.split()]
    assert len(children) >= 2
    process.kill()
    process.join()
    first = reproducible(out)
    assert 1 <= len(first) < len(part(finished_folder, HALF))
    # Its processes end too, so that no two processes train one model.
    while any(map(is_running, children)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_running, children))
    run_study(study, out, **options)
    assert reproducible(out) == part(finished_folder, HALF)


def test_folder_of_another_study_is_an_error_with_the_difference(
    finished_folder, tiny_study, tmp_path
):
    folder = tmp_path / "other"
    shutil.copytree(finished_folder, folder)
    content = load_saved_results(folder / "cells.jsonl.gz")["softmax--none--seed-3"]
    content["run"]["dim"] = 16
    save_model_results(folder / "cells.jsonl.gz", "softmax--none--seed-3", content)
    with pytest.raises(ValueError, match="softmax--none--seed-3 differs in dim"):
        run_study(read_study(tiny_study), folder)


def test_older_results_can_lack_fields_and_have_none_as_dropout(
    finished_folder, tiny_study, tmp_path
):
    folder = shutil.copytree(finished_folder, tmp_path / "older")
    for name, content in load_saved_results(folder / "cells.jsonl.gz").items():
        del content["run"]["epsilon"]
        content["run"]["dropout"] = None
        save_model_results(folder / "cells.jsonl.gz", name, content)
    run_study(read_study(tiny_study), folder)


def test_an_error_in_a_study_model_names_the_model(tiny_fields, write_study, tmp_path):
    tiny_fields["factors"]["position"]["absolute"]["patch_size"] = 3
    with pytest.raises(
        ValueError,
        match=r"study model squared-relu--absolute--seed-0: .*multiples of patch_size = 3",
    ):
        run_study(
            read_study(write_study(tiny_fields)), tmp_path / "out", only={"position": ["absolute"]}
        )


def test_a_model_whose_loss_diverges_is_saved_as_failed(tiny_fields, write_study, tmp_path):
    tiny_fields["base"] |= {"learning_rate": 1e30, "gradient_clip": 0.0, "warmup": 0.0, "epochs": 2}
    only = {"kernel": ["softmax"], "seed": ["0"]}
    folder = run_study(read_study(write_study(tiny_fields)), tmp_path / "out", only=only)
    content = load_saved_results(folder / "cells.jsonl.gz")["softmax--none--seed-0"]
    assert "the loss is" in content["failed"]
    assert "accuracy" not in content


def test_the_error_after_a_killed_process_explains_how_to_resume(tiny_study, tmp_path):
    out = tmp_path / "out"

    def kill_the_first():
        while not list(out.rglob("run.json")):  # one is being trained
            time.sleep(0.01)
        multiprocessing.active_children()[0].kill()

    threading.Thread(target=kill_the_first, daemon=True).start()
    with pytest.raises(ChildProcessError, match="Run the same command again to resume"):
        run_study(read_study(tiny_study), out, processes=2, only=THIRD)
    run_study(read_study(tiny_study), out, only=THIRD)
    assert not list(out.rglob("*.part"))  # which a write that was interrupted left


def test_calls_with_different_models_share_a_folder(finished_folder, tiny_study, tmp_path):
    out, study = tmp_path / "out", read_study(tiny_study)
    calls = []
    for seed in ("0", "3"):
        options = {"command": "study tiny.yaml", "only": {**THIRD, "seed": [seed]}}
        calls.append(FORK.Process(target=run_study, args=(study, out), kwargs=options))
        calls[-1].start()
    for call in calls:
        call.join(240)
    assert [call.exitcode for call in calls] == [0, 0]
    assert reproducible(out) == part(finished_folder, THIRD)


def test_the_workers_of_a_dask_cluster_give_the_same_numbers(finished_folder, tiny_study, tmp_path):
    # Both workers are forks of one process that has imported what they need.
    multiprocessing.set_forkserver_preload(
        ["lightning.pytorch", "teka.training", "reproduction.study"]
    )
    with set_dask_config({"distributed.worker.multiprocessing-method": "forkserver"}):
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
        with cluster:
            parallel = f"dask:{cluster.scheduler_address}"
            study = read_study(tiny_study)
            out = run_study(study, tmp_path / "out", parallel=parallel, only=THIRD)
    assert reproducible(out) == part(finished_folder, THIRD)


@pytest.mark.parametrize("parallel", ["slurm", "dask"])
def test_an_unknown_engine_is_an_error(parallel, tiny_study, tmp_path):
    with pytest.raises(ValueError, match="parallel must be 'loky' or 'dask:ADDRESS', got"):
        run_study(read_study(tiny_study), tmp_path / "out", parallel=parallel)


def test_unreachable_dask_cluster_is_an_error(tiny_study, tmp_path):
    with (
        set_dask_config({"distributed.comm.timeouts.connect": 1}),
        pytest.raises(OSError, match=r"127\.0\.0\.1:9"),
    ):
        run_study(read_study(tiny_study), tmp_path / "out", parallel="dask:tcp://127.0.0.1:9")


def test_zero_processes_are_an_error(tiny_study, tmp_path):
    with pytest.raises(ValueError, match=r"processes must be at least 1.*got 0"):
        run_study(read_study(tiny_study), tmp_path / "out", processes=0)
    assert not (tmp_path / "out").exists()
