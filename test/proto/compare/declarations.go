package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A declaration is one thing that a file declares, in the words of the .proto language: two are the same on the wire
// and in generated code if both strings are equal.
type declaration struct {
	kind string // file, message, field, enum, value, service, rpc, extension
	text string
}

// declarations are keyed by the full name. Unlike the language's own, the name of an enum value goes through its enum.
type declarations map[string]declaration

func declare(file protoreflect.FileDescriptor) declarations {
	all := declarations{"the file": {"file", fmt.Sprintf("syntax %s, package %s", file.Syntax(), file.Package())}}
	all.enums(file.Enums())
	all.messages(file.Messages())
	all.extensions(file.Extensions())
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		all.add(service, "service", "service")
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			all.add(method, "rpc", fmt.Sprintf("rpc (%s) returns (%s)",
				streamed(method.IsStreamingClient(), method.Input()),
				streamed(method.IsStreamingServer(), method.Output())))
		}
	}
	return all
}

func (all declarations) add(of protoreflect.Descriptor, kind, text string) {
	all[string(of.FullName())] = declaration{kind, text}
}

func (all declarations) has(name string) bool {
	_, found := all[name]
	return found
}

func (all declarations) messages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		message := messages.Get(i)
		// The compiler's stand-in for a map; the map's field says it all.
		if message.IsMapEntry() {
			continue
		}
		all.add(message, "message", "message")
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			all.add(field, "field", fieldText(field))
		}
		all.enums(message.Enums())
		all.messages(message.Messages())
		all.extensions(message.Extensions())
	}
}

func (all declarations) enums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		all.add(enum, "enum", "enum")
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			name := fmt.Sprintf("%s.%s", enum.FullName(), value.Name())
			all[name] = declaration{"value", fmt.Sprintf("enum value = %d", value.Number())}
		}
	}
}

// extensions leaves out custom options (csi_secret and its like): they describe the file and never travel.
func (all declarations) extensions(extensions protoreflect.ExtensionDescriptors) {
	for i := range extensions.Len() {
		extension := extensions.Get(i)
		if extension.ContainingMessage().ParentFile().Path() == "google/protobuf/descriptor.proto" {
			continue
		}
		all.add(extension, "extension", fmt.Sprintf("extension of %s: %s",
			extension.ContainingMessage().FullName(), fieldText(extension)))
	}
}

func fieldText(field protoreflect.FieldDescriptor) string {
	var words []string
	if oneof := field.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
		words = append(words, fmt.Sprintf("oneof %s:", oneof.Name()))
	}
	switch {
	case field.IsMap():
		words = append(words, fmt.Sprintf("map<%s, %s>", typeText(field.MapKey()), typeText(field.MapValue())))
	case field.IsList():
		words = append(words, "repeated", typeText(field))
	case field.HasOptionalKeyword():
		words = append(words, "optional", typeText(field))
	case field.Cardinality() == protoreflect.Required:
		words = append(words, "required", typeText(field))
	default:
		words = append(words, typeText(field))
	}
	words = append(words, fmt.Sprintf("= %d", field.Number()))
	if field.IsPacked() {
		words = append(words, "packed")
	}
	return strings.Join(words, " ")
}

func typeText(field protoreflect.FieldDescriptor) string {
	switch {
	case field.Enum() != nil:
		return fmt.Sprintf("enum %s", field.Enum().FullName())
	case field.Kind() == protoreflect.GroupKind:
		return fmt.Sprintf("group %s", field.Message().FullName())
	case field.Message() != nil:
		return string(field.Message().FullName())
	default:
		return field.Kind().String()
	}
}

func streamed(stream bool, message protoreflect.MessageDescriptor) string {
	if stream {
		return fmt.Sprintf("stream %s", message.FullName())
	}
	return string(message.FullName())
}

// count is the number of declarations of each kind.
func (all declarations) count() map[string]int {
	count := make(map[string]int)
	for _, one := range all {
		count[one.kind]++
	}
	return count
}
