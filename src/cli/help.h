// --help and docs/FLAGS.md, written from the table of flags.
#pragma once

#include <string>

#include "cli/flags.h"

namespace dgemma::cli {

std::string general_help();
std::string verb_help(Verb verb);

// The whole of docs/FLAGS.md; a test holds the file against it.
std::string markdown_help();

}  // namespace dgemma::cli
