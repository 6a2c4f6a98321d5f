package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A version of the specification and what it declares.
type version struct {
	name string
	declarations
}

// differences has a line for everything that ours lacks, has in excess or declares otherwise, sorted by name. What lies
// inside something missing or extra is not listed on its own.
func differences(ours declarations, published []version) []string {
	names := maps.Clone(ours)
	for _, one := range published {
		maps.Copy(names, one.declarations)
	}

	var lines []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		parent := name[:max(strings.LastIndex(name, "."), 0)]
		if ours.has(parent) != slices.ContainsFunc(published, func(one version) bool { return one.has(parent) }) {
			continue
		}
		own, inOurs := ours[name]
		having := slices.DeleteFunc(slices.Clone(published), func(one version) bool {
			return !one.has(name)
		})
		switch {
		case len(having) == 0:
			lines = append(lines, fmt.Sprintf("%s: extra: %q, in no version", name, own.text))
		case !inOurs:
			lines = append(lines, fmt.Sprintf("%s: missing: %q, in %s",
				name, having[0].declarations[name].text, join(having)))
		default:
			for _, one := range having {
				if theirs := one.declarations[name]; theirs != own {
					lines = append(lines, fmt.Sprintf("%s: different: %q, but %q in %s",
						name, own.text, theirs.text, one.name))
				}
			}
		}
	}
	return lines
}

func join(versions []version) string {
	names := make([]string, len(versions))
	for i, one := range versions {
		names[i] = one.name
	}
	return strings.Join(names, " and ")
}
