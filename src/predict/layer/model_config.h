// The config.json of models of Hugging Face.
#pragma once

#include <nlohmann/json.hpp>

#include "contextile/advanced/model.h"

namespace contextile {

// True for an object that is a config.json, by its keys.
[[nodiscard]] bool is_model_config(const nlohmann::json& object);

// Reads one. Messages do not name the source. Throws InvalidArgument.
[[nodiscard]] LoadedModel read_model_config(const nlohmann::json& object);

}  // namespace contextile
