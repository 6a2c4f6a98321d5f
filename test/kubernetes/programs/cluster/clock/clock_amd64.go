package clock

import _ "unsafe" // for go:linkname

// What the runtime calls for the time, instead of the kernel; 0: there is no such thing.
//
//go:linkname vdsoClockgettimeSym runtime.vdsoClockgettimeSym
var vdsoClockgettimeSym uintptr

// clockAddress is where the guest's clock_gettime is (clock_amd64.s).
func clockAddress() uintptr

func init() { vdsoClockgettimeSym = clockAddress() }
