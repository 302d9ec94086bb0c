"""Fuzzed command lines, whose options have valid and invalid values in any number and order."""

import random
import shutil
from pathlib import Path

from teka.audit.layers.fixes import FIXES
from teka.audit.movement import TRANSLATION_MODES
from teka.audit.settings import PARTS
from teka.cli.audit import METRICS
from teka.cli.audit_options import SHIFT_SETS
from teka.functional import KERNELS, RELATIVES
from teka.functional.relative.rotary import ROTARY_NORMALIZERS
from tests.campaign.outcome import Tally, run_command

# Valid arguments of each command. The fuzzed options follow and override them.
SMALL = [
    "--image-size",
    "8",
    "--train-size",
    "48",
    "--validation-size",
    "16",
    "--dim",
    "8",
    "--heads",
    "2",
]
AUDIT = ["--data", "data.npz", "--images", "8", "--max-shift", "1"]
BASES = {
    "train": ["train", *SMALL, "--epochs", "1", "--out", "new"],
    "evaluate": ["evaluate", "run"],
    "shift": ["shift", "run", "--mode", "canvas", "--max-shift", "1", "--out", "new"],
    "heads": ["heads", "run"],
    "prune": ["prune", "run", "--out", "new"],
    "export": ["export", "run", "--out", "new"],
    "predict": ["predict", "picture.png", "--model", "model"],
    "audit": ["audit", "model.py:make", *AUDIT, "--skip", *PARTS],
    "compare": ["compare", "model.py:make", "model", *AUDIT],
    "fix": ["fix", "model.py:make", *AUDIT],
    "study": ["study", "study.yaml", "--summary", "--out", "new"],
    "reproduce": ["reproduce", "table1", "--summary", "--out", "new"],
    "sample-efficiency": ["sample-efficiency", "--summary", "--out", "new"],
    "invariant": ["invariant", "--data", "cifar10", "--epochs", "1", "--eager", "--out", "new"],
    "all-shifts": ["all-shifts", "model", "--data", "digits", "--images", "1", "--out", "new"],
    "long-inputs": ["long-inputs", "--seed", "0", "--steps", "1", "1", "1", "--out", "new"],
    "download": ["download", "digits"],
    "demo": ["demo", "--seeds", "0", "0", "--epochs", "0"],
}
OPTIONS = {
    "train": "dim depth heads dim_head patch_size stem periodic pool position kernel num_features backend epochs seed "
    "batch_size optimizer learning_rate betas momentum weight_decay schedule warmup gradient_clip patience epsilon "
    "redraw_every precision label_smoothing random_shift random_flip data data_dir image_size train_size query_key "
    "validation_size model tokens content downsampling resnet_stem dropout position_heads num_waves gate "
    "longest_wave wave_weight rotation_weight_scale rotary_normalizer value_convolution out resume loggers recipe "
    "config accelerator devices accumulate compile activation_checkpointing",
    "evaluate": "data_dir batch_size",
    "shift": "max_shift mode selection batch_size data_dir out",
    "heads": "query out data_dir",
    "prune": "out largest_precision condition_number epochs learning_rate data_dir",
    "export": "out dtype data_dir",
    "predict": "model top ground batch_size json",
    "audit": "data data_dir images seed image_size input_size shift_before_resize mode max_shift shifts step "
    "background placed_size ignore_labels batch_size device budget confidence html json protocol layers skip resume "
    "fail_under metric markdown badge weights num_classes mean std bgr",
    "compare": "data images seed mode max_shift shifts step background batch_size device confidence html json markdown "
    "resume",
    "fix": "data images seed mode max_shift shifts step background batch_size device confidence html json markdown "
    "resume fix out weights",
    "study": "out data_dir processes parallel only summary repeat",
    "reproduce": "scale out data_dir processes parallel only summary",
    "sample-efficiency": "out only data_dir threads summary",
    "invariant": "data seed out data_dir epochs threads model eager",
    "all-shifts": "data out data_dir images",
    "long-inputs": "seed attention out data_dir steps",
    "download": "data_dir timeout attempts wait",
    "demo": "out seeds epochs",
}
WORDS = (
    "",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "2",
    "3",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e9",
    "2000000000",
    "99999999999999999999",
    "0x10",
    "true",
    "null",
    "[]",
    "[1",
    "[1,2]",
    "[a,b]",
    "{}",
    "{a: 1}",
    "*",
    "&a [*a]",
    "!!python/object:os.system",
    "é×\u202e",
    "\x00",
    "a" * 300,
    "../nowhere",
    "/dev/full",
    "/dev/null",
    "/proc/self/mem",
    "/nowhere/at/all",
    ".",
    "run",
    "run/run.json",
    "model",
    "model.py",
    "model.py:leaves",
    "model.py:leaves_when_called",
    "picture.png",
    "data.npz",
    "study.yaml",
    "recipe.yaml",
    "digits",
    "mnist",
    "circular",
    "softmax",
    "rotary",
    "meta",
    "cpu",
    "loky",
    "dask:tcp://127.0.0.1:9",
    "teka",
    "help",
)
# Valid values of each option, and some invalid ones. Not all of them can be combined.
OPTION_VALUES = {
    "kernel": (*KERNELS, "softmx"),
    "position": (*RELATIVES, "none", "absolute", "absolute_table"),
    "rotary_normalizer": ROTARY_NORMALIZERS,
    "mode": TRANSLATION_MODES,
    "metric": METRICS,
    "shifts": SHIFT_SETS,
    "skip": PARTS,
    "fix": (*FIXES, "blur,circular", "positions,"),
    "model": ("performer", "self_attention", "linformer", "resnet18", "digits", "model"),
    "backend": ("auto", "dense", "linear", "toeplitz", "rings", "fft", "windows"),
    "stem": ("patch", "convolution"),
    "pool": ("class", "mean", "attention"),
    "query_key": ("plain", "normalized", "centred"),
    "optimizer": ("adam", "adamw", "sgd"),
    "schedule": ("constant", "cosine"),
    "precision": ("float32", "bfloat16", "float16"),
    "dtype": ("float16", "float32"),
    "direction": ("forward", "forward_backward"),
    "ground": ("auto", "dark", "light"),
    "selection": ("all", "figure1"),
    "patch_size": ("2", "3", "4"),
    "image_size": ("8", "9", "12", "[8,9]"),
    "protocol": ("horn2021", "zhang2019", "chaman2021"),
    "data": ("digits", "data.npz"),
}
NUMBERS = ("0", "1", "2", "3", "4", "7", "0.1", "0.5", "0.9", "1e-3", "true", "false")
# Valid values of these options can take long, so only short or invalid values are used.
SHORT_VALUES = {
    "epochs": ("0", "1", "-1", "x", "1.5"),
    "seeds": ("-1", "x", "1.5", "--"),
    "lengths": ("15", "-1", "x", "16"),
}
SHORT_VALUES |= {
    "repeats": ("0", "-1", "x"),
    "warmup": ("-1", "x"),
    "budget_seconds": ("0", "x"),
    "processes": ("0", "x", "-1"),
}
SHORT_VALUES |= {
    "attempts": ("0", "x"),
    "wait": ("-1", "x"),
    "timeout": ("0", "x"),
    "loggers": ("x", ""),
}
SHORT_VALUES |= {"parallel": ("x", "dask:x", ""), "devices": ("0", "x", "-1"), "compile": ("x",)}


def fuzz_commands(number: int, seed: int) -> Tally:
    """Run fuzzed command lines in the working folder with the fixtures.

    Args:
        number: Number of command lines.
        seed: Seed of the command lines.
    """
    tally, source = Tally("fuzzed command lines"), random.Random(seed)
    kept = {path.name for path in Path.cwd().iterdir()}
    for _ in range(number):
        arguments = random_command_line(source)
        tally.add_command(f"teka {arguments}", run_command(arguments))
        for path in Path.cwd().iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return tally


def random_command_line(source: random.Random) -> list[str]:
    """Return a random command line.

    Args:
        source: Random number generator.
    """
    name = source.choice([*BASES, "train", "train", "audit", "audit"])
    arguments = list(BASES[name])
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        option = source.choice(OPTIONS[name].split())
        words = WORDS if source.random() < 0.5 else OPTION_VALUES.get(option, NUMBERS)
        values = [
            source.choice(SHORT_VALUES.get(option, words))
            for _ in range(source.choice((1, 1, 1, 1, 1, 0, 2)))
        ]
        dashed = "--" + option.replace("_", "-")
        arguments += (
            [f"{dashed}={values[0]}"]
            if len(values) == 1 and source.random() < 0.3
            else [dashed, *values]
        )
    if source.random() < 0.1:
        arguments[source.randrange(len(arguments))] = source.choice(WORDS)
    if source.random() < 0.05:
        del arguments[source.randrange(len(arguments))]
    return arguments
