// What quantize and synth have in common: a plan becomes a pack, with a progress bar, and a table says what
// is in it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "files/pack_manifest.h"
#include "files/quantizers.h"
#include "model/pack_plan.h"

namespace dgemma::cli {

struct PackJob {
    std::string label;   // of the progress bar: "quantizing"
    std::string source;  // the model it is made of, for the manifest
    model::PackFormats formats;
    std::vector<model::PlannedTensor> plan;
    std::function<std::unique_ptr<files::RowSource>(const model::PlannedTensor&)> rows;
    std::vector<std::pair<std::string, std::string>> files;  // name and text
};

// Writes it to --output, and the table of what is in it to stdout. Returns the exit code: 0, or that of an
// interrupted process. Errors: usage (no --output), those of PackWriter.
Result<int> write_pack(const PackJob& job, const Arguments& arguments, Console& console);

// The number of threads that --threads asks for.
int pack_threads(const Arguments& arguments);

// Class by class: format, tensors, numbers, bytes; and each tensor that stayed plainer, with the reason.
void print_pack(const files::PackManifest& manifest, std::ostream& out);

}  // namespace dgemma::cli
