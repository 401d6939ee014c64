#include "common/config/toml_file.h"

#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <toml++/toml.h>

#include "common/config/toml_text.h"

namespace rcuda::config {
namespace {

Status flatten(const toml::table& table, const std::string& prefix,
               std::map<std::string, std::string>* values) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      RCUDA_RETURN_IF_ERROR(flatten(*inner, name + "_", values));
    } else if (auto text = node.value_exact<std::string>()) {
      (*values)[name] = *text;
    } else if (auto number = node.value_exact<int64_t>()) {
      (*values)[name] = std::to_string(*number);
    } else if (auto flag = node.value_exact<bool>()) {
      (*values)[name] = *flag ? "1" : "0";
    } else if (const toml::array* list = node.as_array()) {
      std::string joined;
      for (const toml::node& item : *list) {
        auto number = item.value_exact<int64_t>();
        auto text = item.value_exact<std::string>();
        if (!number && !text) {
          return Status(Code::kInvalidArgument, "'" + name +
                                                    "' holds something that is neither "
                                                    "text nor a whole number");
        }
        joined += (joined.empty() ? "" : ",") + (number ? std::to_string(*number) : *text);
      }
      (*values)[name] = joined;
    } else {
      return Status(Code::kInvalidArgument, "'" + name +
                                                "' is neither text, a whole number, "
                                                "true/false nor a list of these");
    }
  }
  return {};
}

}  // namespace

Status load_toml_file(Registry& registry, const std::string& path) {
  std::map<std::string, std::string> values;
  try {
    std::ifstream file(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (const auto line = foreign_character(text)) {
      return Status(Code::kInvalidArgument, path + ":" + std::to_string(*line) +
                                                ": only lines that are comments may hold other "
                                                "characters than ASCII; in \"text\" write \\u00e9");
    }
    // If the file could not be opened, toml++ reports it.
    const toml::table table = file ? toml::parse(text, path) : toml::parse_file(path);
    if (Status status = flatten(table, "", &values); !status.ok()) {
      return std::move(status).with_context(path);
    }
  } catch (const toml::parse_error& error) {
    std::ostringstream where;
    where << path << ":" << error.source().begin.line << ": " << error.description();
    return Status(Code::kInvalidArgument, where.str());
  } catch (const std::ios_base::failure& error) {  // a folder, for instance
    return Status(Code::kInvalidArgument, path + ": " + error.code().message());
  }
  return registry.load(values, path);
}

}  // namespace rcuda::config
