import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    BertConfig,
    BertModel,
    DeiTConfig,
    DeiTModel,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTModel,
    pipeline,
)

import teka
from teka.convert import replace_attention
from teka.integrations.transformers import (
    StateCache,
    TekaConfig,
    TekaForImageClassification,
    TekaImageProcessor,
    register,
)
from teka.models import load

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of the name of the cache, which they change
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
KEPT = (torch.arange(9) >= torch.tensor([[0], [3]])).long()
register()


def make(kind: str, implementation: str = "sdpa") -> Any:
    torch.manual_seed(0)
    model = {
        "vit": lambda: ViTModel(ViTConfig(image_size=(32, 24), patch_size=8, **SIZES)),
        "deit": lambda: DeiTModel(DeiTConfig(image_size=32, patch_size=8, **SIZES)),
        "bert": lambda: BertModel(BertConfig(vocab_size=50, **SIZES)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=None)
        ),
    }[kind]()
    model.set_attn_implementation(implementation)
    return model.double().eval()


def outputs(model: Any, *, words: Tensor = WORDS, mask: Tensor | None = KEPT) -> Tensor:
    with torch.no_grad():
        if model.main_input_name == "pixel_values":
            sides = model.config.image_size
            sides = sides if isinstance(sides, tuple | list) else (sides, sides)
            images = torch.randn(2, 3, *sides, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            return model(images).last_hidden_state
        return model(words, attention_mask=mask)[0]


@pytest.mark.parametrize("kind", ["vit", "deit", "bert", "gpt2"])
def test_the_softmax_by_name_is_what_transformers_computes(kind: str):
    found, expected = (outputs(make(kind, name)) for name in ("teka:softmax", "sdpa"))
    kept = KEPT.bool() if kind in ("bert", "gpt2") else slice(None)
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["teka", "teka:positive-alibi", "teka:focused"])
def test_dropped_words_are_as_if_they_were_not_there(name: str):
    model, mask = make("bert", name), KEPT.flip(1)
    found = outputs(model, mask=mask)[1, :6]
    torch.testing.assert_close(found, outputs(model, words=WORDS[1:, :6], mask=None)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["teka", "teka:taylor2-decay", "teka:softmax-rotary"])
def test_gpt2_sees_no_later_word(name: str):
    model, other = make("gpt2", name), WORDS.clone()
    other[:, 6:] = 7
    before, after = (outputs(model, words=words, mask=None)[:, :6] for words in (WORDS, other))
    torch.testing.assert_close(before, after, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["teka", "teka:positive-rotary", "teka:squared_relu-alibi"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_state_generates_what_all_keys_generate(name: str, beams: int):
    model = make("gpt2", name)
    options = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0, "num_beams": beams, "output_logits": True}
    options |= {"attention_mask": KEPT, "return_dict_in_generate": True}
    expected = model.generate(WORDS, use_cache=False, **options)
    for cache in ({}, {"past_key_values": StateCache()}):
        found = model.generate(WORDS, **options, **cache)
        assert torch.equal(found.sequences, expected.sequences)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-8, atol=1e-8)


def test_a_state_does_not_grow_and_goes_on_with_several_words():
    model, cache = make("gpt2", "teka"), StateCache()
    with torch.no_grad():
        expected = model(WORDS).logits
        parts = [model(WORDS[:, a:b], past_key_values=cache).logits for a, b in ((0, 4), (4, 5), (5, 9))]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-8, atol=1e-8)
    state: Any = cache.layers[0]
    state = state.state
    assert state.num_tokens == 9
    assert state.total.total.shape == (2, 4, 8, 9)


def test_a_state_is_not_for_a_model_of_other_attention():
    model, cache = make("gpt2"), StateCache()
    model(WORDS, past_key_values=cache)
    with pytest.raises(ValueError, match=r"attn_implementation is .*, expected 'teka' or a variant"):
        model(WORDS[:, :1], past_key_values=cache)


def test_an_image_of_another_size_needs_its_grid():
    model = make("deit", "teka")
    images = torch.zeros(1, 3, 32, 24, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"the number of tokens is 14, expected 16 patches, \(4, 4\), and class"):
        model(images, interpolate_pos_encoding=True)
    with teka.on(teka.Grid((4, 3)), num_prefix_tokens=2):
        assert model(images, interpolate_pos_encoding=True).last_hidden_state.shape == (1, 14, 32)


@pytest.mark.parametrize("kind", ["vit", "bert", "gpt2"])
def test_replaced_attention_has_kernels_of_its_own_that_learn(kind: str):
    model = make(kind)
    before = copy.deepcopy(outputs(model))
    kept = KEPT.bool() if kind in ("bert", "gpt2") else slice(None)
    same = copy.deepcopy(model)
    replace_attention(same, kernel="softmax", relative=None)
    torch.testing.assert_close(outputs(same)[kept], before[kept], rtol=1e-10, atol=1e-10)
    report = replace_attention(model, kernel="hedgehog", relative="fourier")
    assert len(report.replaced) == 2
    assert not torch.allclose(outputs(model)[kept], before[kept])
    learned = {name for name, _ in model.named_parameters() if "teka_heads" in name}
    assert len(learned) == 2 * (4 + 4)


def test_a_model_of_ours_is_saved_and_loaded_by_the_auto_classes(tmp_path: Path):
    model = TekaForImageClassification.from_teka("digits")
    config = model.config
    assert isinstance(config, TekaConfig)
    model.save_pretrained(tmp_path)
    TekaImageProcessor.of(config).save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    images = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    assert (tmp_path / "model.safetensors").is_file()
    torch.testing.assert_close(loaded(images).logits, load("digits")(images))
    assert isinstance(AutoImageProcessor.from_pretrained(tmp_path), TekaImageProcessor)
    picture = Image.new("L", (40, 40), 255)
    ImageDraw.Draw(picture).line((20, 5, 20, 35), fill=0, width=5)
    assert pipeline("image-classification", model=str(tmp_path))([picture])[0][0]["label"] == "1"


def test_what_a_file_does_not_have_is_new_in_the_dtype_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    TekaForImageClassification.from_teka("digits").save_pretrained(tmp_path)
    # Memory that nobody has written is often that of a former model, and so plausible.
    monkeypatch.setattr(torch, "empty_like", lambda like, **options: torch.full_like(like, torch.nan, **options))
    options = {"num_labels": 4, "ignore_mismatched_sizes": True, "dtype": torch.bfloat16}
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path, **options)
    assert 0 < loaded.model.head.weight.abs().max() <= 32**-0.5
    assert torch.equal(loaded.model.norm.weight, load("digits").get_parameter("norm.weight").bfloat16())
    assert loaded(torch.rand(1, 1, 16, 16).bfloat16()).logits.dtype == torch.bfloat16


class Pictures(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        label = place % 2
        return {"pixel_values": torch.full((1, 8, 8), float(label)), "labels": torch.tensor(label)}


def test_the_trainer_trains_a_model_of_ours(tmp_path: Path):
    torch.manual_seed(0)
    options = {"dim": 16, "depth": 1, "heads": 2, "kernel": "positive", "pool": "mean"}
    config = TekaConfig(image_size=(8, 8), in_channels=1, num_labels=2, options=options)
    model = AutoModelForImageClassification.from_config(config)
    arguments = {"per_device_train_batch_size": 16, "num_train_epochs": 6, "learning_rate": 0.01, "report_to": []}
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, disable_tqdm=True, **arguments)
    trainer = Trainer(model=model, args=arguments, train_dataset=Pictures(), eval_dataset=Pictures())
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 4
    trainer.save_model(str(tmp_path / "trained"))
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path / "trained").eval()
    images = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(loaded(images).logits, model.eval()(images).logits)


def test_a_config_that_fits_no_model_is_an_error():
    with pytest.raises(ValueError, match="heads is 3, expected a divisor of dim = 16"):
        TekaForImageClassification(TekaConfig(options={"dim": 16, "depth": 1, "heads": 3}))
    assert isinstance(TekaForImageClassification(TekaConfig()), nn.Module)
