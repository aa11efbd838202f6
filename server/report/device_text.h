// Text about what computed a result: the same line in tables, HTML, `info` and `doctor`.
#pragma once

#include <string>

#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// "cuda:0 NVIDIA H200, sm_90, 132 SMs, 1980 MHz as read, driver 580.159.04, CUDA 13.0, cuBLASLt
/// 13.1.0"; what is not known of a device is left out.
std::string DeviceText(const v1::DeviceDescription& device, const v1::Environment& environment);

/// The clock of stage times on the devices of an environment: "stage times by CUDA events"; empty
/// where no device states one.
std::string StageClockText(const v1::Environment& environment);

/// What a variant's GEMMs ran on: "hardware", "model" or, where they differ, "hardware and model".
std::string WhatRanText(const v1::VariantReport& variant);

}  // namespace quantgate
