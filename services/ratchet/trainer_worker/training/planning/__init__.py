"""Trains planners of workflows: `supervised` imitates logged plans, `policy_gradient` improves the selector."""
