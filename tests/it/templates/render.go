// Renders a template as GARM does: text/template, nothing added, onto values that come as JSON on stdin.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/template"
)

// Context is what GARM 0.1 gives a runner install template.
type Context struct {
	FileName, DownloadURL, RunnerUsername, RunnerGroup, RepoURL, MetadataURL, RunnerName, RunnerLabels string
	CallbackURL, CallbackToken, TempDownloadToken, CABundle, GitHubRunnerGroup                         string
	EnableBootDebug, UseJITConfig                                                                      bool
	ExtraContext                                                                                       map[string]string
}

// ContextOfAgents is what GARM 0.2 gives it.
type ContextOfAgents struct {
	Context
	AgentMode, ForceInsecureGARMAgent                  bool
	AgentDownloadURL, AgentURL, AgentToken, AgentShell string
	HTTPProxy, HTTPSProxy, NoProxy                     string
}

func main() {
	if err := render(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(version, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	parsed, err := template.New("").Parse(string(text))
	if err != nil {
		return err
	}
	values := json.NewDecoder(os.Stdin)
	values.DisallowUnknownFields()
	if version == "0.1" {
		var context Context
		if err := values.Decode(&context); err != nil {
			return err
		}
		return parsed.Execute(os.Stdout, context)
	}
	var context ContextOfAgents
	if err := values.Decode(&context); err != nil {
		return err
	}
	return parsed.Execute(os.Stdout, context)
}
