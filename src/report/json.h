// JSON documents whose keys keep their order. Costs seconds to compile: headers that only name Json
// include report/table.h, which declares it.
#pragma once

#include <nlohmann/json.hpp>

#include "report/table.h"
