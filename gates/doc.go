// Package gates checks a change before it may leave the sandbox.
//
// A gate sees a sealed change and never the live tree; it answers with findings. The pipeline turns them into
// a Verdict, which belongs to the change whose digest it names. Everything fails closed: a gate that panics,
// errs, runs out of time or checked nothing blocks like one that found something, and so does a change that
// no gate was asked about.
//
// What each built-in gate must accept and must refuse is part of it, as Fixtures that prove that it can turn red. The gate
// paths is here; the others are in the packages below, and package builtin has them all.
package gates
