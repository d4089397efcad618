"""The zoo's models of Hugging Face's transformers, from tiny random configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.zoo.model import BATCH, WORDS, ZooModel, need_transformers

_TOKENS = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_BLOCK = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_SIZES = _BLOCK | {"max_position_embeddings": 64}
_TEXT = _SIZES | _TOKENS
_GROUPED = _TEXT | {"num_key_value_heads": 2}
_ROUTED = _GROUPED | {"num_experts_per_tok": 2}
_DROPOUT = "dropout attention_dropout activation_dropout hidden_dropout attn_dropout resid_dropout"
_OFF = (*_DROPOUT.split(), "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate",
        "embd_pdrop", "attn_pdrop", "resid_pdrop", "drop_path_rate", "classifier_dropout_prob",
        "layerdrop", "encoder_layerdrop", "decoder_layerdrop", "feat_proj_dropout",
        "final_dropout", "projection_dropout", "embedding_dropout", "qa_dropout",
        "seq_classif_dropout", "embed_dropout", "mask_time_prob", "apply_spec_augment")  # fmt: skip

ModelInputs = Callable[[], dict[str, Any]]


def _built(kind: str, config: str, sizes: dict[str, Any], attention: str | None) -> Any:
    def build() -> Any:
        library = need_transformers()
        parts = {
            word: getattr(library, held.pop("class"))(**held) if "class" in held else held
            for word, held in ((w, dict(h) if isinstance(h, dict) else h) for w, h in sizes.items())
            if isinstance(held, dict)
        }
        configuration = getattr(library, config)(**(sizes | parts))
        for held in (
            configuration,
            *[part for part in vars(configuration).values() if hasattr(part, "to_dict")],
        ):
            _without_dropout(held)
        if attention is not None:
            configuration._attn_implementation = attention
        return getattr(library, kind)(configuration)

    return build


def _without_dropout(config: Any) -> None:
    """No dropout, so that training is comparable; no cache, whose class is not a tensor."""
    for word in _OFF:
        if isinstance(getattr(config, word, None), float):
            setattr(config, word, 0.0)
        elif isinstance(getattr(config, word, None), bool):
            setattr(config, word, False)
    if hasattr(config, "use_cache"):
        config.use_cache = False


def ids(*names: str, length: int = 12) -> ModelInputs:
    """Random token ids under these names."""

    def inputs() -> dict[str, Any]:
        import torch

        return {name: torch.randint(3, WORDS, (BATCH, length)) for name in names}

    return inputs


def images(size: int, **texts: int) -> ModelInputs:
    """Random pixels of square images, and texts of some lengths."""

    def inputs() -> dict[str, Any]:
        import torch

        made = {"pixel_values": torch.randn(BATCH, 3, size, size)}
        return made | {
            name: torch.randint(3, WORDS, (BATCH, length)) for name, length in texts.items()
        }

    return inputs


def _speech() -> dict[str, Any]:
    import torch

    features = torch.randn(BATCH, 16, 32)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, WORDS, (BATCH, 8))}


def _waves() -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(BATCH, 400)}


def _prompts() -> dict[str, Any]:
    import torch

    points = {"input_points": 32 * torch.rand(4, 1, 2, 2)}
    return {"pixel_values": torch.randn(4, 3, 32, 32), **points, "multimask_output": False}


def _videos() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(4, 4, 3, 16, 16)}


def _series() -> dict[str, Any]:
    import torch

    return {"past_values": torch.randn(BATCH, 32, 3)}


def _row(
    name: str,
    family: str,
    kind: str,
    config: str,
    sizes: dict[str, Any],
    inputs: ModelInputs,
    attention: str | None = None,
    in_evaluation: str = "",
) -> ZooModel:
    build = _built(kind, config, sizes, attention)
    return ZooModel(name, family, build, inputs, "transformers", in_evaluation)


_ids = ids("input_ids")
_pairs = ids("input_ids", "decoder_input_ids")
_VISION = _BLOCK | {"image_size": 16, "patch_size": 4}
_CLIP = {
    "text_config": _TEXT | {"projection_dim": 16},
    "vision_config": _VISION | {"projection_dim": 16},
    "projection_dim": 16,
}
_GPT2 = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
_SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_T5 |= {"vocab_size": WORDS, "decoder_start_token_id": 0}
_WHISPER = _SEQ2SEQ | _TOKENS | {
    "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 16,
    "decoder_start_token_id": 1, "suppress_tokens": [], "begin_suppress_tokens": [],
}  # fmt: skip
_MLA = _ROUTED | {
    "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 2,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
_GLM = _ROUTED | {
    "head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_WINDOWS = ["sliding_attention", "full_attention"]
_MAMBA2 = _TOKENS | {
    "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 8,
    "n_groups": 1, "chunk_size": 4,
}  # fmt: skip
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
_SWIN |= {"window_size": 4}
_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "patch_size": 2}
_SAM_VISION = _BLOCK | {
    "image_size": 32, "patch_size": 4, "output_channels": 16, "window_size": 4, "mlp_dim": 64,
    "global_attn_indexes": [1], "num_pos_feats": 8,
}  # fmt: skip
_SAM = {
    "vision_config": _SAM_VISION,
    "prompt_encoder_config": {"hidden_size": 16, "image_size": 32, "patch_size": 4,
                              "image_embedding_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2,
                            "num_attention_heads": 2, "iou_head_hidden_dim": 16},
}  # fmt: skip
_WAV2VEC = _BLOCK | {
    "vocab_size": WORDS, "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_SEGFORMER = {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16],
    "patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16, "num_labels": 4,
}  # fmt: skip
_DROPS = "training drops layers by a branch on a random number, which cannot be exported"

TRANSFORMERS = (
    # Decoders
    _row("llama", "text", "LlamaForCausalLM", "LlamaConfig", _GROUPED, _ids),
    _row("qwen3", "text", "Qwen3ForCausalLM", "Qwen3Config", _GROUPED | {"head_dim": 8}, _ids),
    _row(
        "gemma2", "text", "Gemma2ForCausalLM", "Gemma2Config",
        _GROUPED | {"head_dim": 8, "sliding_window": 4}, _ids,
    ),
    _row(
        "gemma3", "text", "Gemma3ForCausalLM", "Gemma3TextConfig",
        _GROUPED | {"head_dim": 8, "sliding_window": 4, "layer_types": _WINDOWS}, _ids,
    ),
    _row("phi", "text", "PhiForCausalLM", "PhiConfig", _TEXT, _ids),
    _row("phi3", "text", "Phi3ForCausalLM", "Phi3Config", _GROUPED, _ids),
    _row("mistral", "text", "MistralForCausalLM", "MistralConfig",
         _GROUPED | {"sliding_window": 4, "head_dim": 8}, _ids),
    _row("gpt2", "text", "GPT2LMHeadModel", "GPT2Config", _GPT2, _ids),
    _row("gpt_neox", "text", "GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT, _ids),
    _row("opt", "text", "OPTForCausalLM", "OPTConfig",
         _TOKENS | {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "max_position_embeddings": 64,
                    "word_embed_proj_dim": 32}, _ids),
    _row("bloom", "text", "BloomForCausalLM", "BloomConfig",
         {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}, _ids),
    _row("falcon", "text", "FalconForCausalLM", "FalconConfig",
         _TOKENS | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}, _ids),
    _row("olmo2", "text", "Olmo2ForCausalLM", "Olmo2Config", _GROUPED, _ids),
    _row("cohere", "text", "CohereForCausalLM", "CohereConfig", _GROUPED, _ids),
    _row("starcoder2", "text", "Starcoder2ForCausalLM", "Starcoder2Config", _GROUPED, _ids),
    # Encoders
    _row("bert", "text", "BertModel", "BertConfig", _SIZES | {"vocab_size": WORDS}, _ids),
    _row("albert", "text", "AlbertModel", "AlbertConfig",
         _SIZES | {"vocab_size": WORDS, "embedding_size": 16}, _ids),
    _row("roberta", "text", "RobertaModel", "RobertaConfig", _TEXT, _ids),
    _row("distilbert", "text", "DistilBertModel", "DistilBertConfig",
         {"vocab_size": WORDS, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4,
          "max_position_embeddings": 64}, _ids),
    _row("deberta", "text", "DebertaV2Model", "DebertaV2Config",
         _SIZES | {"vocab_size": WORDS, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
         _ids),
    _row("modernbert", "text", "ModernBertModel", "ModernBertConfig",
         _TEXT | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}, _ids),
    # Encoders with decoders
    _row("t5", "text", "T5ForConditionalGeneration", "T5Config", _T5, _pairs),
    _row("bart", "text", "BartForConditionalGeneration", "BartConfig",
         _SEQ2SEQ | _TOKENS | {"max_position_embeddings": 64, "decoder_start_token_id": 1}, _pairs),
    _row(
        "whisper", "audio", "WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, _speech,
    ),
    _row("wav2vec2", "audio", "Wav2Vec2Model", "Wav2Vec2Config", _WAV2VEC, _waves,
         in_evaluation=_DROPS),
    # State spaces
    _row("mamba", "recurrent", "MambaForCausalLM", "MambaConfig",
         _TOKENS | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, _ids),
    _row("mamba2", "recurrent", "Mamba2ForCausalLM", "Mamba2Config", _MAMBA2, _ids),
    # Experts
    _row("mixtral", "experts", "MixtralForCausalLM", "MixtralConfig",
         _ROUTED | {"num_local_experts": 8}, _ids),
    _row("qwen3_moe", "experts", "Qwen3MoeForCausalLM", "Qwen3MoeConfig",
         _ROUTED | {"head_dim": 8, "num_experts": 8, "moe_intermediate_size": 16}, _ids),
    _row("deepseek_v3", "experts", "DeepseekV3ForCausalLM", "DeepseekV3Config", _MLA, _ids),
    _row("gpt_oss", "experts", "GptOssForCausalLM", "GptOssConfig",
         _ROUTED | {"head_dim": 8, "num_local_experts": 8, "sliding_window": 4,
                    "layer_types": _WINDOWS}, _ids, "eager"),
    _row("glm4_moe", "experts", "Glm4MoeForCausalLM", "Glm4MoeConfig", _GLM, _ids),
    _row("olmoe", "experts", "OlmoeForCausalLM", "OlmoeConfig",
         _ROUTED | {"num_experts": 8}, _ids),
    # Vision
    _row("vit", "vision", "ViTForImageClassification", "ViTConfig", _VISION, images(16)),
    _row("deit", "vision", "DeiTModel", "DeiTConfig", _VISION, images(16)),
    _row("beit", "vision", "BeitModel", "BeitConfig",
         _VISION | {"use_relative_position_bias": True}, images(16)),
    _row("dinov2", "vision", "Dinov2Model", "Dinov2Config", _VISION, images(16)),
    _row("convnext", "vision", "ConvNextForImageClassification", "ConvNextConfig", _CONVNEXT,
         images(32)),
    _row("swin", "vision", "SwinForImageClassification", "SwinConfig", _SWIN, images(32)),
    _row("segformer", "vision", "SegformerForSemanticSegmentation", "SegformerConfig", _SEGFORMER,
         images(32)),
    _row("sam", "vision", "SamModel", "SamConfig", _SAM, _prompts),
    _row("videomae", "vision", "VideoMAEModel", "VideoMAEConfig",
         _BLOCK | {"image_size": 16, "patch_size": 4, "num_frames": 4, "tubelet_size": 2}, _videos),
    # Several kinds of inputs
    _row("clip", "multimodal", "CLIPModel", "CLIPConfig", _CLIP, images(16, input_ids=8)),
    _row("siglip", "multimodal", "SiglipModel", "SiglipConfig",
         {"text_config": _TEXT, "vision_config": _VISION}, images(16, input_ids=8)),
    _row("patchtst", "series", "PatchTSTModel", "PatchTSTConfig",
         {"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8,
          "d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32,
          "do_mask_input": False}, _series),
)  # fmt: skip
