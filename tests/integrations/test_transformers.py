import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from transformers import (
    ASTConfig,
    ASTModel,
    AutoImageProcessor,
    AutoModelForImageClassification,
    BartConfig,
    BartModel,
    BeitConfig,
    BeitModel,
    BertConfig,
    BertModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTModel,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    SiglipVisionConfig,
    SiglipVisionModel,
    StaticCache,
    Trainer,
    TrainingArguments,
    VideoMAEConfig,
    VideoMAEModel,
    ViTConfig,
    ViTModel,
    VivitConfig,
    VivitModel,
    VJEPA2Config,
    VJEPA2Model,
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
from teka.integrations.transformers.attention import attention_forward
from teka.models import load

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
WORDS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
KEPT = (torch.arange(9) >= torch.tensor([[0], [3]])).long()
register()


def make_model(kind: str, implementation: str = "sdpa") -> Any:
    torch.manual_seed(0)
    model = {
        "vit": lambda: ViTModel(ViTConfig(image_size=(32, 24), patch_size=8, **SIZES)),
        "deit": lambda: DeiTModel(DeiTConfig(image_size=32, patch_size=8, **SIZES)),
        "bert": lambda: BertModel(BertConfig(vocab_size=50, **SIZES)),
        "llama": lambda: LlamaForCausalLM(
            LlamaConfig(
                vocab_size=50, num_key_value_heads=2, bos_token_id=0, eos_token_id=None, **SIZES
            )
        ),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=50,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=64,
                bos_token_id=0,
                eos_token_id=None,
            )
        ),
    }[kind]()
    model.set_attn_implementation(implementation)
    return model.double().eval()


def model_output(model: Any, *, words: Tensor = WORDS, mask: Tensor | None = KEPT) -> Tensor:
    with torch.no_grad():
        if model.main_input_name == "pixel_values":
            sides = model.config.image_size
            sides = sides if isinstance(sides, tuple | list) else (sides, sides)
            images = torch.randn(
                2, 3, *sides, generator=torch.Generator().manual_seed(1), dtype=torch.float64
            )
            return model(images).last_hidden_state
        return model(words, attention_mask=mask)[0]


@pytest.mark.parametrize("kind", ["vit", "deit", "bert", "gpt2"])
def test_softmax_by_name_equals_transformers(kind: str):
    found, expected = (model_output(make_model(kind, name)) for name in ("teka:softmax", "sdpa"))
    kept = KEPT.bool() if kind in ("bert", "gpt2") else slice(None)
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["teka", "teka:positive-alibi", "teka:focused"])
def test_masked_words_have_no_influence(name: str):
    model, mask = make_model("bert", name), KEPT.flip(1)
    found = model_output(model, mask=mask)[1, :6]
    torch.testing.assert_close(
        found, model_output(model, words=WORDS[1:, :6], mask=None)[0], rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", ["teka", "teka:taylor2-decay", "teka:softmax-rotary"])
def test_causal_model_ignores_later_words(name: str):
    model, other = make_model("gpt2", name), WORDS.clone()
    other[:, 6:] = 7
    before, after = (model_output(model, words=words, mask=None)[:, :6] for words in (WORDS, other))
    torch.testing.assert_close(before, after, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["teka", "teka:positive-rotary", "teka:squared_relu-alibi"])
@pytest.mark.parametrize("beams", [1, 3])
def test_state_cache_generates_the_same_words_as_keys(name: str, beams: int):
    model = make_model("gpt2", name)
    options = {
        "max_new_tokens": 7,
        "do_sample": False,
        "pad_token_id": 0,
        "num_beams": beams,
        "output_logits": True,
    }
    options |= {"attention_mask": KEPT, "return_dict_in_generate": True}
    expected = model.generate(WORDS, use_cache=False, **options)
    for cache in ({}, {"cache": StateCache()}):
        found = model.generate(WORDS, **options, **cache)
        assert torch.equal(found.sequences, expected.sequences)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-8, atol=1e-8)


def test_state_has_a_fixed_size_and_continues_with_several_words():
    model, cache = make_model("gpt2", "teka"), StateCache()
    with torch.no_grad():
        expected = model(WORDS).logits
        parts = [model(WORDS[:, a:b], cache=cache).logits for a, b in ((0, 4), (4, 5), (5, 9))]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-8, atol=1e-8)
    state: Any = cache.layers[0]
    state = state.state
    assert state.num_tokens == 9
    assert state.sums.values.shape == (2, 4, 8, 8)


def test_state_cache_with_other_attention_is_an_error():
    model, cache = make_model("gpt2"), StateCache()
    model(WORDS, cache=cache)
    with pytest.raises(ValueError, match=r"attn_implementation must be 'teka' or a variant"):
        model(WORDS[:, :1], cache=cache)


IMAGE: dict[str, Any] = {"image_size": 32, "patch_size": 8, **SIZES}
CLIP: dict[str, Any] = {**SIZES, "image_size": 16, "num_frames": 6}
SOUND: dict[str, Any] = {
    "num_mel_bins": 20,
    "max_length": 40,
    "patch_size": 8,
    "frequency_stride": 4,
    "time_stride": 6,
}
# Model, config, shape of the inputs, and the grid and prefix that the model's architecture has.
PLACED: dict[str, tuple[type, PretrainedConfig, tuple[int, ...], tuple[int, ...], int]] = {
    "vit": (ViTModel, ViTConfig(**IMAGE), (3, 32, 32), (4, 4), 1),
    "sides": (ViTModel, ViTConfig(**{**IMAGE, "image_size": (16, 31)}), (3, 16, 31), (2, 3), 1),
    "deit": (DeiTModel, DeiTConfig(**IMAGE), (3, 32, 32), (4, 4), 2),
    "beit": (BeitModel, BeitConfig(**IMAGE), (3, 32, 32), (4, 4), 1),
    "registers": (
        Dinov2WithRegistersModel,
        Dinov2WithRegistersConfig(**IMAGE, num_register_tokens=3),
        (3, 32, 32),
        (4, 4),
        4,
    ),
    "clip": (CLIPVisionModel, CLIPVisionConfig(**IMAGE), (3, 32, 32), (4, 4), 1),
    "siglip": (SiglipVisionModel, SiglipVisionConfig(**IMAGE), (3, 32, 32), (4, 4), 0),
    "videomae": (VideoMAEModel, VideoMAEConfig(**CLIP, patch_size=8), (6, 3, 16, 16), (3, 2, 2), 0),
    "vivit": (
        VivitModel,
        VivitConfig(**CLIP, tubelet_size=[2, 8, 4]),
        (6, 3, 16, 16),
        (3, 2, 4),
        1,
    ),
    "vjepa2": (
        VJEPA2Model,
        VJEPA2Config(
            **SIZES,
            patch_size=8,
            crop_size=16,
            frames_per_clip=6,
            mlp_ratio=2,
            pred_num_hidden_layers=1,
        ),
        (6, 3, 16, 16),
        (3, 2, 2),
        0,
    ),
    "sound": (ASTModel, ASTConfig(**SIZES, **SOUND), (40, 20), (4, 6), 2),
}


def make_patch_model(
    kind: str, name: str = "teka"
) -> tuple[Any, Tensor, Callable[[Any, Tensor], Tensor]]:
    """Return a model whose attention is far from uniform, its inputs, and its output function."""
    torch.manual_seed(0)
    model_class, config, shape, *_ = PLACED[kind]
    model: Any = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    model.set_attn_implementation(name)
    options = {"skip_predictor": True} if kind == "vjepa2" else {}
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    return (
        model.double().eval(),
        inputs,
        lambda model, inputs: model(inputs, **options).last_hidden_state,
    )


@pytest.mark.parametrize("kind", PLACED)
def test_patches_use_their_grid_after_the_prefix_tokens(kind: str):
    model, inputs, call = make_patch_model(kind)
    *_, shape, prefix = PLACED[kind]
    with torch.no_grad():
        with teka.on(teka.Grid(shape), prefix):
            expected = call(model, inputs)
        torch.testing.assert_close(call(model, inputs), expected, rtol=1e-12, atol=1e-12)
        with teka.on(teka.Grid(shape, spacing=2.0), prefix):
            assert (call(model, inputs) - expected).norm() > 1e-3 * expected.norm()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    ("kind", "sides"), [("vit", (32, 40)), ("vit", (24, 24)), ("deit", (32, 24))]
)
def test_image_of_another_size_needs_its_grid(kind: str, sides: tuple[int, int], replaced: bool):
    model, *_ = make_patch_model(kind)
    if replaced:
        replace_attention(model)
    images = torch.randn(1, 3, *sides, dtype=torch.float64)
    grid, prefix = teka.Grid((sides[0] // 8, sides[1] // 8)), PLACED[kind][4]
    expected = f"the number of tokens must be {16 + prefix} for the config's images"
    with pytest.raises(
        ValueError,
        match=rf"{expected}, 4 × 4 patches after {prefix} other tokens, "
        rf"got {grid.num_tokens + prefix}. .* teka.on",
    ):
        model(images, interpolate_pos_encoding=True)
    with teka.on(grid, num_prefix_tokens=prefix):
        output = model(images, interpolate_pos_encoding=True).last_hidden_state
    assert output.shape == (1, grid.num_tokens + prefix, 32)


def test_image_of_another_size_needs_no_grid_without_a_relative_kernel():
    images = torch.randn(1, 3, 24, 40, dtype=torch.float64)
    found, expected = (
        make_patch_model("vit", name)[0](images, interpolate_pos_encoding=True).last_hidden_state
        for name in ("teka:softmax", "sdpa")
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(use_reentrant: bool, replaced: bool):
    model, *_ = make_patch_model("vit")
    if replaced:
        replace_attention(model)
    model.train()  # without dropout, whose probability is 0 by default
    images = torch.randn(1, 3, 24, 40, dtype=torch.float64)
    weights = torch.randn(1, 16, 32, dtype=torch.float64)
    gradients = []
    for is_checkpointed in (False, True):
        if is_checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        leaf = images.clone().requires_grad_()
        with teka.on(teka.Grid((3, 5)), num_prefix_tokens=1):
            output = model(leaf, interpolate_pos_encoding=True).last_hidden_state
        (output * weights).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


STATIC = ["teka", "teka:softmax", "teka:focused", "teka:squared_relu-decay"]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("name", STATIC)
def test_static_cache_gives_the_same_logits(kind: str, name: str):
    model = make_model(kind, name)
    cache = StaticCache(config=model.config, max_cache_len=14)
    with torch.no_grad():
        expected = model(WORDS, attention_mask=KEPT, use_cache=False).logits
        parts = [
            model(WORDS[:, start:stop], attention_mask=KEPT[:, :stop], cache=cache).logits
            for start, stop in ((0, 4), (4, 5), (5, 9))
        ]
    kept = KEPT.bool()
    torch.testing.assert_close(torch.cat(parts, dim=1)[kept], expected[kept], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", STATIC)
def test_static_cache_generates_the_same_words(name: str):
    model = make_model("llama", name)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    options |= {"attention_mask": KEPT, "return_dict_in_generate": True}
    expected = model.generate(WORDS, use_cache=False, **options)
    found = model.generate(WORDS, cache_implementation="static", **options)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("cache_implementation", ["static", "dynamic"])
def test_a_sliding_window_is_an_error(cache_implementation: str):
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "sliding_window": 4}
    model: Any = MistralForCausalLM(MistralConfig(vocab_size=50, pad_token_id=0, **sizes))
    model.set_attn_implementation("teka")
    with pytest.raises(
        ValueError, match=r"the model's attention mask must be causal or bidirectional"
    ):
        model.generate(WORDS, max_new_tokens=2, cache_implementation=cache_implementation)


def test_unsupported_arguments_and_masks_are_errors():
    beit = BeitModel(BeitConfig(**IMAGE, use_relative_position_bias=True))
    beit.set_attn_implementation("teka:softmax")  # its bias is 0 at first, but learned
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(batch, keys\), got"):
        beit(torch.zeros(1, 3, 32, 32))
    layer, tokens = nn.Identity(), torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"softcap of Identity must be .*got a value"):
        attention_forward(
            layer, tokens, tokens, tokens, None, kernels=("softmax", None), softcap=50.0
        )
    with pytest.raises(
        ValueError, match=r"attention_mask must have shape \(batch, keys\), got \(1, 3, 3\)"
    ):
        attention_forward(
            layer, tokens, tokens, tokens, torch.ones(1, 3, 3), kernels=("softmax", None)
        )


def test_cross_attention_with_a_relative_kernel_is_an_error():
    sizes: dict[str, Any] = {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }
    model = BartModel(
        BartConfig(vocab_size=50, encoder_attention_heads=4, decoder_attention_heads=4, **sizes)
    ).eval()
    model.set_attn_implementation("teka")
    with pytest.raises(
        ValueError, match=r"BartAttention must be self.*got attention to other tokens than its own"
    ):
        model(WORDS)
    last_hidden_state = []
    for name in ("teka:softmax", "sdpa"):
        model.set_attn_implementation(name)
        last_hidden_state.append(model(WORDS).last_hidden_state)
    torch.testing.assert_close(last_hidden_state[0], last_hidden_state[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["vit", "bert", "gpt2"])
def test_replaced_attention_has_learned_kernels(kind: str):
    model = make_model(kind)
    before = copy.deepcopy(model_output(model))
    kept = KEPT.bool() if kind in ("bert", "gpt2") else slice(None)
    same = copy.deepcopy(model)
    replace_attention(same, kernel="softmax", relative=None)
    torch.testing.assert_close(model_output(same)[kept], before[kept], rtol=1e-10, atol=1e-10)
    report = replace_attention(model, kernel="hedgehog", relative="fourier")
    assert len(report.replaced) == 2
    assert not torch.allclose(model_output(model)[kept], before[kept])
    learned = {name for name, _ in model.named_parameters() if "teka_heads" in name}
    assert len(learned) == 2 * (4 + 4)


def test_teka_model_is_saved_and_loaded_by_auto_classes(tmp_path: Path):
    model = TekaForImageClassification.from_teka("digits")
    config = model.config
    assert isinstance(config, TekaConfig)
    model.save_pretrained(tmp_path)
    TekaImageProcessor.from_config(config).save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    images = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    assert (tmp_path / "model.safetensors").is_file()
    torch.testing.assert_close(loaded(images).logits, load("digits")(images))
    assert isinstance(AutoImageProcessor.from_pretrained(tmp_path), TekaImageProcessor)
    picture = Image.new("L", (40, 40), 255)
    ImageDraw.Draw(picture).line((20, 5, 20, 35), fill=0, width=5)
    assert pipeline("image-classification", model=str(tmp_path))([picture])[0][0]["label"] == "1"


def test_missing_weights_are_initialized_in_the_requested_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    TekaForImageClassification.from_teka("digits").save_pretrained(tmp_path)
    # Memory that nobody has written is often that of a former model, and so plausible.
    monkeypatch.setattr(
        torch, "empty_like", lambda like, **options: torch.full_like(like, torch.nan, **options)
    )
    options = {"num_labels": 4, "ignore_mismatched_sizes": True, "dtype": torch.bfloat16}
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path, **options)
    assert 0 < loaded.model.head.weight.abs().max() <= 32**-0.5
    assert torch.equal(
        loaded.model.norm.weight, load("digits").get_parameter("norm.weight").bfloat16()
    )
    assert loaded(torch.rand(1, 1, 16, 16).bfloat16()).logits.dtype == torch.bfloat16


class PictureDataset(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        label = place % 2
        return {"pixel_values": torch.full((1, 8, 8), float(label)), "labels": torch.tensor(label)}


def test_trainer_trains_a_teka_model(tmp_path: Path):
    torch.manual_seed(0)
    options = {"dim": 16, "depth": 1, "heads": 2, "kernel": "positive", "pool": "mean"}
    config = TekaConfig(image_size=(8, 8), in_channels=1, num_labels=2, options=options)
    model = AutoModelForImageClassification.from_config(config)
    arguments = {
        "per_device_train_batch_size": 16,
        "num_train_epochs": 6,
        "learning_rate": 0.01,
        "report_to": [],
    }
    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, disable_tqdm=True, **arguments
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=PictureDataset(), eval_dataset=PictureDataset()
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 4
    trainer.save_model(str(tmp_path / "trained"))
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path / "trained").eval()
    images = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(loaded(images).logits, model.eval()(images).logits)


def test_loss_depends_on_the_problem_type():
    config = TekaConfig(image_size=8, num_labels=3, problem_type="multi_label_classification")
    model, images = TekaForImageClassification(config).eval(), torch.rand(2, 3, 8, 8)
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    with torch.no_grad():
        output = model(images, labels=labels)
        kept = labels * output.logits.sigmoid() + (1 - labels) * (1 - output.logits.sigmoid())
        torch.testing.assert_close(output.loss, -kept.log().mean(), rtol=1e-5, atol=1e-6)
        config.problem_type = None
        found = model(images, labels=torch.tensor([2, 0])).loss
        torch.testing.assert_close(
            found, -output.logits.log_softmax(1)[[0, 1], [2, 0]].mean(), rtol=1e-5, atol=1e-6
        )


def test_config_accepts_names_of_other_configs(tmp_path: Path):
    config = TekaConfig(image_size=8, num_channels=1, num_labels=4)
    assert (config.image_size, config.in_channels, config.num_channels) == ([8, 8], 1, 1)
    assert TekaForImageClassification(config).eval()(torch.rand(1, 1, 8, 8)).logits.shape == (1, 4)
    config.save_pretrained(tmp_path)
    assert TekaConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert TekaImageProcessor(image_size=8, in_channels=1).image_size == [8, 8]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "heads": (
        {"options": {"dim": 16, "depth": 1, "heads": 3}},
        "heads must be a divisor of dim = 16.*got 3",
    ),
    "option": (
        {"patch_size": 4},
        r"patch_size must be an entry of options, options={'patch_size': 4}.*got 4",
    ),
    "size": ({"image_size": 0}, r"image_size must be .*got 0"),
    "labels": ({"id2label": {1: "cat", 2: "dog"}}, "id2label must be a name for each class"),
    "model": ({"model": "vit"}, "model must be one of.*got 'vit'"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_invalid_config_is_an_error(kind: str):
    arguments, message = WRONG[kind]
    with pytest.raises(ValueError, match=message):
        TekaForImageClassification(TekaConfig(**arguments))


def test_argument_size_of_the_image_processor_is_an_error():
    with pytest.raises(ValueError, match=r"argument of TekaImageProcessor must be .*got 'size'"):
        TekaImageProcessor(size={"height": 8, "width": 8})


@pytest.mark.parametrize("name", ["performer", "linformer", "self_attention"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_recomputes_every_block(name: str, use_reentrant: bool):
    torch.manual_seed(0)
    options = {"dim": 16, "depth": 2, "heads": 9 if name == "self_attention" else 2}
    model = TekaForImageClassification(
        TekaConfig(model=name, image_size=8, num_labels=3, options=options)
    ).double()
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1

    attention = next(
        module for module in model.modules() if type(module).__name__.endswith("Block")
    )
    attention = attention.get_submodule("attention")
    attention.register_forward_hook(count)
    gradients = []
    for is_checkpointed in (False, True, False):
        if is_checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        else:
            model.activation_checkpointing_disable()
        calls[0] = 0
        torch.manual_seed(1)  # of dropout
        model.train().zero_grad()
        model(images).logits.pow(3).sum().backward()
        assert calls[0] == 1 + is_checkpointed
        assert model.is_activation_checkpointing == is_checkpointed
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


def test_model_without_blocks_has_no_activation_checkpointing():
    model = TekaForImageClassification(
        TekaConfig(model="resnet18", image_size=32, options={"width": 4})
    )
    with pytest.raises(ValueError, match="does not support activation checkpointing"):
        model.activation_checkpointing_enable()
