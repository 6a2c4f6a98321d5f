// Command published writes the descriptor of csi.proto, as the Go package of the CSI specification carries it, to
// DIR/VERSION.binpb. VERSION is that of the module it was built with, so that a descriptor can't pass for another one's.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

const module = "github.com/container-storage-interface/spec"

func main() {
	log.SetFlags(0)
	log.SetPrefix("published: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: published DIR")
	}
	version, err := moduleVersion()
	if err != nil {
		log.Fatal(err)
	}
	descriptor, err := proto.Marshal(protodesc.ToFileDescriptorProto(csi.File_csi_proto))
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Args[1], version+".binpb"), descriptor, 0o644); err != nil {
		log.Fatal(err)
	}
}

func moduleVersion() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", fmt.Errorf("built without module information")
	}
	for _, dep := range info.Deps {
		// A replaced module is not what was published.
		if dep.Path == module && dep.Replace == nil {
			return strings.TrimPrefix(dep.Version, "v"), nil
		}
	}
	return "", fmt.Errorf("built without a published version of %s", module)
}
