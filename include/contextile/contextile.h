// Includes everything that planning, proof, prediction and execution need, in reading order.
// Headers for adding a method, a transport or a kernel are in contextile/extend, those of inference
// in contextile/serving, and the rest in contextile/advanced.
#pragma once

// clang-format off
#include "contextile/base.h"
#include "contextile/mask.h"
#include "contextile/workload.h"
#include "contextile/data.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/bounds.h"
#include "contextile/report.h"
#include "contextile/schedule.h"
#include "contextile/executor.h"
#include "contextile/inproc_attention.h"
#include "contextile/store.h"
#include "contextile/lookahead.h"
// clang-format on
