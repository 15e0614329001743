// The vision_config of a config.json (contract/model.md 1.3).
#pragma once

#include <optional>

#include "base/result.h"
#include "model/config.h"
#include "model/json_fields.h"

namespace dgemma::model {

// top: the whole config.json. Nothing where vision_config is unset: a checkpoint without a tower. Errors: as
// parse_config.
Result<std::optional<VisionConfig>> parse_vision_config(const JsonFields& top);

}  // namespace dgemma::model
