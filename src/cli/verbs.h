// The commands. Each returns the exit code of a run that came to its end, or the error that stopped it.
#pragma once

#include "base/result.h"
#include "cli/arguments.h"
#include "cli/console.h"

namespace dgemma::cli {

Result<int> run_ask(const Arguments& arguments, Console& console);
Result<int> run_eval(const Arguments& arguments, Console& console);
Result<int> run_info(const Arguments& arguments, Console& console);
Result<int> run_verify(const Arguments& arguments, Console& console);
Result<int> run_bench(const Arguments& arguments, Console& console);
Result<int> run_doctor(const Arguments& arguments, Console& console);
Result<int> run_tokenize(const Arguments& arguments, Console& console);
Result<int> run_template(const Arguments& arguments, Console& console);
Result<int> run_parse(const Arguments& arguments, Console& console);
Result<int> run_quantize(const Arguments& arguments, Console& console);
Result<int> run_synth(const Arguments& arguments, Console& console);
Result<int> run_replay(const Arguments& arguments, Console& console);
Result<int> run_serve(const Arguments& arguments, Console& console);

// A whole command line, from the words after the program's name to the exit code: 0 done, 1 it did not work,
// 2 it was asked for wrongly, 130 and 143 interrupted. An error becomes one sentence on console.err.
int run(std::span<const std::string> args, std::span<const std::string> environment, Console& console);

}  // namespace dgemma::cli
