// The text forms of tools: declarations, arguments and results (contract/tokenizer.md 3.1 to 3.4).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/segment_writer.h"
#include "text/template_value.h"

namespace dgemma::text {

class ToolSyntax {
  public:
    // `null_word`: how null is written in arguments and results; `None` in the legacy templates.
    ToolSyntax(SegmentWriter& out, std::string_view null_word) : out_(out), null_word_(null_word) {}

    // `<|tool>declaration:NAME{...}<tool|>` of one entry of `tools`. Errors: invalid, where the template
    // would fail; `where` names the entry.
    Status declaration(TemplateValue tool, std::string_view where);

    // A value. Keys of objects in it, at any depth, are wrapped in quote markers if `quote_keys`.
    void value(TemplateValue value, bool quote_keys);

    // `key:value,key:value` of an object, sorted, keys bare.
    void members(const Value& object);

    // `<|tool_response>response:NAME{...}<tool_response|>`
    void response(std::string_view name, TemplateValue response);

  private:
    Status parameters(TemplateValue properties, bool without_schema_keys, std::string_view where);
    Status property(const Member& property, std::string_view where);
    Status item_schema(const Value& items, std::string_view where);
    Status quoted_list(TemplateValue list, std::string_view where);
    void quoted(std::string_view text);

    SegmentWriter& out_;
    std::string_view null_word_;
};

}  // namespace dgemma::text
