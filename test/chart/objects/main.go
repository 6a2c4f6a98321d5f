// Reads manifests from standard input as the API server would with fieldValidation=Strict, and prints each of them as a
// line of JSON. A kind that is not known, a field that its type does not have, a field that is there twice, and a label
// that is none are errors.
//
// The types are those of the release of Kubernetes that the module file names.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	snapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	openshift "github.com/openshift/api/security/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	storage "k8s.io/api/storage/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	stream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// labels are the wrong ones of an object, and of the pods that it makes.
func labels(object runtime.Object) error {
	about, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	wrong := validation.ValidateLabels(about.GetLabels(), field.NewPath("metadata", "labels"))
	template := field.NewPath("spec", "template", "metadata", "labels")
	switch object := object.(type) {
	case *apps.Deployment:
		wrong = append(wrong, validation.ValidateLabels(object.Spec.Template.Labels, template)...)
	case *apps.DaemonSet:
		wrong = append(wrong, validation.ValidateLabels(object.Spec.Template.Labels, template)...)
	}
	return wrong.ToAggregate()
}

func run(in io.Reader, out io.Writer) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, core.AddToScheme, networking.AddToScheme, policy.AddToScheme, rbac.AddToScheme,
		storage.AddToScheme, definitions.AddToScheme, snapshot.AddToScheme, openshift.AddToScheme, monitoring.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := stream.NewYAMLReader(bufio.NewReader(in))
	var wrong []error
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return errors.Join(wrong...)
		} else if err != nil {
			return err
		}
		line, err := yaml.YAMLToJSON(text)
		if err == nil && bytes.Equal(line, []byte("null")) {
			continue // Comments only.
		}
		var object runtime.Object
		if err == nil {
			object, _, err = decoder.Decode(text, nil, nil)
		}
		if err == nil {
			err = labels(object)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%w in\n%s", err, text))
			continue
		}
		if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
			return err
		}
	}
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
