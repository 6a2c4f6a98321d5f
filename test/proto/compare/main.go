// Command compare holds a .proto file against published descriptors: it has to declare everything that any of them
// declares, in the same way, and nothing else. Comments, options and reserved ranges do not count.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	// The files that csi.proto imports; a published descriptor holds only their names.
	_ "google.golang.org/protobuf/types/known/timestamppb"
	_ "google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: compare FILE.proto VERSION.binpb...")
	}
	ours, err := compile(os.Args[1])
	if err != nil {
		log.Fatalf("proto: %v", err)
	}
	var published []version
	for _, path := range os.Args[2:] {
		file, err := load(path)
		if err != nil {
			log.Fatalf("proto: %s: %v", path, err)
		}
		name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		published = append(published, version{name, declare(file)})
	}

	declared := declare(ours)
	if found := differences(declared, published); len(found) > 0 {
		log.Fatalf("proto: %s differs from the specification:\n  %s", os.Args[1], strings.Join(found, "\n  "))
	}
	count := declared.count()
	fmt.Printf("proto: %d messages, %d fields, %d enums with %d values, %d services, %d RPCs agree with %s\n",
		count["message"], count["field"], count["enum"], count["value"], count["service"], count["rpc"],
		join(published))
}

// compile reads our file; its imports are the well-known ones, which the compiler carries.
func compile(path string) (protoreflect.FileDescriptor, error) {
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			ImportPaths: []string{filepath.Dir(path)},
		}),
	}
	files, err := compiler.Compile(context.Background(), filepath.Base(path))
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

func load(path string) (protoreflect.FileDescriptor, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file descriptorpb.FileDescriptorProto
	if err := proto.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	return protodesc.NewFile(&file, protoregistry.GlobalFiles)
}
