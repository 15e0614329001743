#include "text/tool_syntax.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "text/python_text.h"

namespace dgemma::text {

namespace {

using Type = Value::Type;

constexpr std::string_view quote = "<|\"|>";

Error invalid(std::string message) { return Error{ErrorKind::invalid, std::move(message)}; }

std::string upper_text(TemplateValue value) { return python_upper(text_of(value)); }

// The keys that describe an object schema itself. In an object without `properties` the template takes all
// other keys for properties.
bool is_schema_key(std::string_view key) {
    return key == "description" || key == "type" || key == "properties" || key == "required" ||
           key == "nullable";
}

// Jinja's `'response' in function`. Nothing where Python cannot ask that.
std::optional<bool> contains_response(TemplateValue function) {
    switch (function->type()) {
        case Type::object:
            return function->find("response") != nullptr;
        case Type::string:
            return function->as_string().find("response") != std::string::npos;
        case Type::array:
            return std::any_of(function->as_array().begin(), function->as_array().end(),
                               [](const Value& item) { return is_string(&item, "response"); });
        default:
            return std::nullopt;
    }
}

}  // namespace

void ToolSyntax::quoted(std::string_view text) {
    out_.markup(quote);
    out_.data(text);
    out_.markup(quote);
}

void ToolSyntax::value(TemplateValue value, bool quote_keys) {
    // The template takes undefined for an empty sequence.
    if (!value) return out_.markup("[]");
    switch (value->type()) {
        case Type::null:
            return out_.markup(null_word_);
        case Type::boolean:
            return out_.markup(value->as_boolean() ? "true" : "false");
        case Type::string:
            return quoted(value->as_string());
        case Type::integer:
        case Type::number:
            return out_.data(text_of(value));
        case Type::array: {
            out_.markup("[");
            bool first = true;
            for (const Value& item : value->as_array()) {
                if (!first) out_.markup(",");
                first = false;
                this->value(&item, quote_keys);
            }
            return out_.markup("]");
        }
        case Type::object: {
            out_.markup("{");
            bool first = true;
            for (const Member* member : sorted_members(*value)) {
                if (!first) out_.markup(",");
                first = false;
                if (quote_keys)
                    quoted(member->key);
                else
                    out_.data(member->key);
                out_.markup(":");
                this->value(&member->value, quote_keys);
            }
            return out_.markup("}");
        }
    }
}

void ToolSyntax::members(const Value& object) {
    bool first = true;
    for (const Member* member : sorted_members(object)) {
        if (!first) out_.markup(",");
        first = false;
        out_.data(member->key);
        out_.markup(":");
        value(&member->value, false);
    }
}

void ToolSyntax::response(std::string_view name, TemplateValue response) {
    out_.markup("<|tool_response>response:");
    out_.data(name);
    out_.markup("{");
    if (is_type(response, Type::object)) {
        members(*response);
    } else {
        out_.markup("value:");
        value(response, false);
    }
    out_.markup("}<tool_response|>");
}

Status ToolSyntax::quoted_list(TemplateValue list, std::string_view where) {
    const std::optional<Items> items = Items::of(list);
    if (!items)
        return invalid(
            fmt::format("{} has a `required` that is no list: name the properties in a list", where));
    for (std::size_t i = 0; i < items->size(); ++i) {
        if (i > 0) out_.markup(",");
        quoted(text_of((*items)[i]));
    }
    return {};
}

Status ToolSyntax::declaration(TemplateValue tool, std::string_view where) {
    const TemplateValue function = item_of(tool, "function");
    if (!function)
        return invalid(fmt::format(
            R"({} has no `function`: wrap it as {{"type":"function","function":{{...}}}})", where));
    out_.markup("<|tool>declaration:");
    out_.data(text_of(item_of(function, "name")));
    out_.markup("{description:");
    quoted(text_of(item_of(function, "description")));

    if (const TemplateValue schema = item_of(function, "parameters"); is_true(schema)) {
        out_.markup(",parameters:{");
        const std::string of_schema = fmt::format("{}.function.parameters", where);
        if (const TemplateValue properties = item_of(schema, "properties"); is_true(properties)) {
            out_.markup("properties:{");
            DGEMMA_CHECK(parameters(properties, false, of_schema));
            out_.markup("},");
        }
        if (const TemplateValue required = item_of(schema, "required"); is_true(required)) {
            out_.markup("required:[");
            DGEMMA_CHECK(quoted_list(required, of_schema));
            out_.markup("],");
        }
        if (const TemplateValue type = item_of(schema, "type"); is_true(type)) {
            out_.markup("type:");
            quoted(upper_text(type));
            out_.markup("}");
        }
    }

    const std::optional<bool> has_response = contains_response(function);
    if (!has_response) return invalid(fmt::format("{} has a `function` that is no object", where));
    if (*has_response) {
        const TemplateValue response = item_of(function, "response");
        if (!response) return invalid(fmt::format("{} has a `function` that is no object", where));
        out_.markup(",response:{");
        if (const TemplateValue description = item_of(response, "description"); is_true(description)) {
            out_.markup("description:");
            quoted(text_of(description));
            out_.markup(",");
        }
        // A response of another type leaves its brace open: a quirk the model was shown (contract 2.8).
        if (upper_text(item_of(response, "type")) == "OBJECT") {
            out_.markup("type:");
            quoted("OBJECT");
            out_.markup("}");
        }
    }
    out_.markup("}<tool|>");
    return {};
}

Status ToolSyntax::parameters(TemplateValue properties, bool without_schema_keys, std::string_view where) {
    if (!is_type(properties, Type::object)) {
        return invalid(fmt::format("{} has `properties` that are {}: they must be an object of schemas",
                                   where, describe(properties->type())));
    }
    bool first = true;
    for (const Member* member : sorted_members(*properties)) {
        if (without_schema_keys && is_schema_key(member->key)) continue;
        if (!first) out_.markup(",");
        first = false;
        DGEMMA_CHECK(property(*member, where));
    }
    return {};
}

Status ToolSyntax::property(const Member& property, std::string_view where) {
    const TemplateValue schema = &property.value;
    const std::string type = upper_text(item_of(schema, "type"));
    bool first = true;
    const auto begin_field = [&](std::string_view name) {
        if (!first) out_.markup(",");
        first = false;
        out_.markup(name);
    };

    out_.data(property.key);
    out_.markup(":{");
    if (const TemplateValue description = item_of(schema, "description"); is_true(description)) {
        begin_field("description:");
        quoted(text_of(description));
    }
    if (type == "STRING") {
        if (const TemplateValue choices = item_of(schema, "enum"); is_true(choices)) {
            begin_field("enum:");
            value(choices, true);
        }
    } else if (type == "ARRAY") {
        const TemplateValue items = item_of(schema, "items");
        if (is_type(items, Type::object) && is_true(items)) {
            begin_field("items:{");
            DGEMMA_CHECK(item_schema(*items, where));
            out_.markup("}");
        }
    }
    if (is_true(item_of(schema, "nullable"))) begin_field("nullable:true");
    if (type == "OBJECT") {
        const TemplateValue inner = item_of(schema, "properties");
        const bool has_properties = is_type(inner, Type::object);
        begin_field("properties:{");
        DGEMMA_CHECK(parameters(has_properties ? inner : schema, !has_properties, where));
        out_.markup("}");
        if (const TemplateValue required = item_of(schema, "required"); is_true(required)) {
            begin_field("required:[");
            DGEMMA_CHECK(quoted_list(required, where));
            out_.markup("]");
        }
    }
    begin_field("type:");
    quoted(type);
    out_.markup("}");
    return {};
}

Status ToolSyntax::item_schema(const Value& items, std::string_view where) {
    bool first = true;
    for (const Member* member : sorted_members(items)) {
        const TemplateValue field = &member->value;
        if (field->is(Type::null)) continue;
        if (!first) out_.markup(",");
        first = false;
        if (member->key == "properties") {
            out_.markup("properties:{");
            if (field->is(Type::object)) DGEMMA_CHECK(parameters(field, false, where));
            out_.markup("}");
        } else if (member->key == "required") {
            out_.markup("required:[");
            DGEMMA_CHECK(quoted_list(field, where));
            out_.markup("]");
        } else if (member->key == "type") {
            out_.markup("type:");
            if (field->is(Type::string)) {
                quoted(python_upper(field->as_string()));
                continue;
            }
            // A list of types. What is empty or zero counts as no types at all; of an object its keys count.
            const std::optional<Items> types = is_true(field) ? Items::of(field) : Items::of(nullptr);
            if (!types)
                return invalid(fmt::format("{} has an item `type` that is neither a name nor a list", where));
            out_.markup("[");
            for (std::size_t i = 0; i < types->size(); ++i) {
                if (i > 0) out_.markup(",");
                quoted(upper_text((*types)[i]));
            }
            out_.markup("]");
        } else {
            out_.data(member->key);
            out_.markup(":");
            value(field, true);
        }
    }
    return {};
}

}  // namespace dgemma::text
