// The names that a source keeps to itself, read as text by the structure tests.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/structure/source_tree.h"

namespace quantgate {

/// The functions, types and constants of the file's unnamed namespaces; aliases may repeat.
std::set<std::string> UnnamedNamespaceNames(const SourceFile& file);

/// Paths of the sources that a CMakeLists.txt gives compile options of their own.
std::set<std::string> SourcesWithOptions(const SourceFile& cmake_list);

}  // namespace quantgate
