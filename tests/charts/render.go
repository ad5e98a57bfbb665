// Renders the templates of a chart with Go's own text/template, where there is no helm. Standard input holds
// {"templates": {name: text}, "data": {"Values": ..., "Release": ..., "Chart": ...}}; standard output gets {name: text}.
// The functions are those of helm 3 and sprig that the chart uses, with their arguments' order and results.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"text/template"
)

type request struct {
	Templates map[string]string
	Data      map[string]any
}

func main() {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fail(err)
	}
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var text bytes.Buffer
			err := all.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
		"required": func(message string, value any) (any, error) {
			if value == nil || value == "" {
				return nil, fmt.Errorf("%s", message)
			}
			return value, nil
		},
		"default": func(other any, value any) any {
			if value == nil || reflect.ValueOf(value).IsZero() {
				return other
			}
			return value
		},
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"quote": func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"nindent": func(count int, text string) string {
			pad := strings.Repeat(" ", count)
			return "\n" + pad + strings.ReplaceAll(text, "\n", "\n"+pad)
		},
		"trunc": func(count int, text string) string {
			if len(text) > count {
				return text[:count]
			}
			return text
		},
		"trimSuffix": func(end, text string) string { return strings.TrimSuffix(text, end) },
		"sha256sum":  func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
	})
	for name, text := range asked.Templates {
		if _, err := all.New(name).Parse(text); err != nil {
			fail(err)
		}
	}
	rendered := map[string]string{}
	for name := range asked.Templates {
		var text bytes.Buffer
		if err := all.ExecuteTemplate(&text, name, asked.Data); err != nil {
			fail(err)
		}
		rendered[name] = text.String()
	}
	json.NewEncoder(os.Stdout).Encode(rendered)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
