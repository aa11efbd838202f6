// Recipes that together use every format, every option and every override, for comparisons of
// engines.
#pragma once

namespace quantgate {

inline constexpr const char* kRecipeCases[] = {
    "bf16",
    "bf16:activation_dtype=f16",
    "fp8_current",
    "fp8_current:fp8_format=e4m3,power_2_scales=true",
    "fp8_current:amax_epsilon=0.25,scale_rule=reciprocal",
    "fp8_current:element_rounding=nearest_away,overflow=nan",
    "fp8_current:split_accumulator_fprop=true,split_accumulator_dgrad=false",
    "fp8_current:backward_override=high_precision",
    "fp8_current:backward_override=dequantized",
    "fp8_delayed",
    "fp8_delayed:fp8_format=e4m3,update=unfused,amax_compute_algo=most_recent,margin=1",
    "fp8_delayed:amax_history_len=3",
    "fp8_block",
    "fp8_block:power_2_scales=false,fp8_format=hybrid",
    "fp8_block:w_block_dim=1,scale_rule=reciprocal",
    "fp8_block:x_block_dim=2,w_block_dim=1,grad_block_dim=1,overflow=nan",
    "fp8_block:amax_epsilon=0.5,element_rounding=nearest_away",
    "fp8_block:backward_override=high_precision",
    "fp8_block:backward_override=dequantized",
    "mxfp8",
    "mxfp8:fp8_format=hybrid,enable_2d_quantization=true",
    "mxfp8:scale_rule=floor",
    "mxfp8:scale_rule=ceil,overflow=nan",
    "mxfp8:scale_rule=even",
    "mxfp8:scale_rule=nearest,element_rounding=nearest_away",
    "mxfp8:backward_override=high_precision",
    "mxfp8:backward_override=dequantized",
    "mxfp6_e2m3",
    "mxfp6_e3m2:scale_rule=even",
    "mxfp4:enable_2d_quantization=true",
    "mxfp4:backward_override=dequantized",
    "nvfp4",
    "nvfp4:disable_rht=true",
    "nvfp4:disable_stochastic_rounding=true",
    "nvfp4:disable_2d_quantization=true",
    "nvfp4:scale_rule=two_level_clamped",
    "nvfp4:scale_rule=single_level,element_rounding=nearest_away",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,nvfp4_4over6=all",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,nvfp4_4over6=all,"
    "nvfp4_4over6_err_mode=mse,nvfp4_4over6_e4m3_max=448",
    "nvfp4:disable_rht=true,nvfp4_4over6=weights",
    "nvfp4:disable_rht=true,row_scaled_activation=true,backward_override=dequantized",
    "nvfp4:backward_override=high_precision",
    "nvfp4:backward_override=dequantized",
    // Other libraries' steps.
    "fp8_current:scale_rule=inverse,scale_dtype=source,element_operation=divide,"
    "operation_dtype=source,zero_scale=dtype_epsilon,zero_sign=drop",
    "fp8_current:scale_rule=float64,power_2_scales=true,fp8_format=e4m3",
    "fp8_block:scale_rule=reciprocal_product,element_operation=reciprocal",
    "fp8_block:scale_rule=qwix,power_2_scales=false",
    "fp8_delayed:zero_sign=negative,element_rounding=nearest_zero",
    "mxfp8:scale_rule=torchao_rceil",
    "mxfp8:scale_rule=compressed_tensors",
    "mxfp4:scale_rule=modelopt,element_rounding=nearest_zero,zero_sign=negative",
    "mxfp4:scale_rule=gguf,element_rounding=nearest_zero,zero_sign=drop_rounded",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,scale_rule=torchao_two_level",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,scale_rule=compressed_tensors,"
    "zero_sign=drop",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,scale_rule=modelopt",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,scale_rule=qwix",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,scale_rule=vllm",
};

}  // namespace quantgate
