//! Transcripts with stock clients; the scripts beside this file are the tests.
