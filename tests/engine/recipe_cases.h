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
    "fp8_rowwise",
    "fp8_rowwise:fp8_format=e4m3,power_2_scales=true,split_accumulator_fprop=true",
    "fp8_rowwise:amax_epsilon=0.25,scale_rule=reciprocal,overflow=nan",
    "fp8_rowwise:backward_override=high_precision",
    "fp8_rowwise:backward_override=dequantized",
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
};

}  // namespace quantgate
