"""Models of Hugging Face's transformers from tiny configs, against eager."""

from __future__ import annotations

import pytest

import weft
from tests.tolerance import assert_close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
WORDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
MODELS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", SIZES | WORDS | {"num_key_value_heads": 2}),
    "GPT2": ("GPT2LMHeadModel", "GPT2Config", GPT2 | WORDS),
    "Bert": ("BertModel", "BertConfig", SIZES),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "Llama" else pytest.mark.long) for n in MODELS]
)
def test_a_model_equals_eager_on_one_device_and_on_four(name):
    made, config, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, made)(getattr(transformers, config)(**sizes)).eval()
    given = {"input_ids": torch.randint(0, 64, (4, 8))}
    if hasattr(model.config, "use_cache"):
        given["use_cache"] = False
    with torch.no_grad():
        expected = model(**given)
    split = {"mesh": weft.Mesh(data=4), "plan": {"input_ids": weft.P("data")}}
    for options in ({}, split):
        found = weft.compile(model, **options)(**given)
        assert type(found) is type(expected)
        for key, value in expected.items():
            assert_close(found[key].numpy(), value.numpy(), 256, least=1e-1)


def test_a_static_cache_is_changed_in_place_by_one_program_for_all_positions():
    torch.manual_seed(0)
    made, config, sizes = MODELS["Llama"]
    model = getattr(transformers, made)(getattr(transformers, config)(**sizes)).eval()
    ids = torch.randint(0, 64, (2, 7))
    compiled = weft.compile(model)
    mine, theirs = (transformers.StaticCache(config=model.config, max_cache_len=8) for _ in "12")
    with torch.no_grad():
        for cache in (mine, theirs):
            model(ids[:, :4], past_key_values=cache)
        for at in range(4, 7):
            token = ids[:, at : at + 1]
            expected = model(token, past_key_values=theirs).logits
            found = compiled(token, past_key_values=mine).logits
            assert_close(found.numpy(), expected.numpy(), 256, least=1e-1)
    assert len(compiled._programs) == 1 and int(mine.get_seq_length()) == 7
    with pytest.raises(weft.WeftError, match="DynamicCache"):
        compiled(ids, past_key_values=transformers.DynamicCache(config=model.config))
    first = compiled(ids)  # without a cache, the result has a new one
    assert first.past_key_values.get_seq_length() == 7


@pytest.mark.long
def test_a_llama_of_70_billion_parameters_is_compiled_from_types_alone():
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
        num_attention_heads=64, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
        tokens = torch.zeros(8, 2048, dtype=torch.int64)
    compiled = weft.compile(model, input_ids=tokens, mesh=weft.Mesh(data=8, tp=8))
    rows = compiled.collectives()
    assert {(row.name, row.over) for row in rows} == {("stablehlo.all_reduce", "tp")}
    assert sum(row.count for row in rows) == 161  # two for each layer, and the embedding's
    weights = sum(p.numel() for p in model.parameters()) * 2
    assert compiled.memory().arguments < 1.01 * weights / 8
